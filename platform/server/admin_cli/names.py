"""Find the ids of objects that a command names: a tenant or app by its name, a webhook by its URL.

A word that begins as an id (``tn_...``) is one, and costs no request; an object whose name begins so is
named by its id. Any other word is the whole name, of exactly one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.server.admin_cli.client import AdminClient, path_of


def tenant_of(client: AdminClient, word: str, *, deleted: bool = False) -> str:
    """Return the id of a tenant. Raises CommandError."""
    if word.startswith("tn_"):
        return word
    found = client.items("/admin/tenants", name=word, deleted=deleted)
    return _one(found, "name", word, "tenant", "fairserve tenant list")


def app_of(client: AdminClient, word: str, tenant: str | None, *, deleted: bool = False) -> str:
    """Return the id of an app of a tenant. Raises CommandError."""
    if word.startswith("app_"):
        return word
    found = client.items("/v1/apps", name=word, deleted=deleted, tenant=tenant)
    return _one(found, "name", word, "app", "fairserve app list")


def key_of(client: AdminClient, word: str, path: str, tenant: str | None) -> str:
    """Return the id of a key that is not revoked; ``path`` has the keys of its owner."""
    if word.startswith("key_"):
        return word
    keys = client.items(path, tenant=tenant)
    valid = [key for key in keys if key["revoked_at"] is None]
    return _one(valid, "name", word, "valid key", "fairserve key list")


def webhook_of(client: AdminClient, word: str, tenant: str | None) -> str:
    """Return the id of a webhook, which its URL names."""
    if word.startswith("wh_"):
        return word
    found = client.items("/v1/webhooks", tenant=tenant)
    return _one(found, "url", word, "webhook", "fairserve webhook list")


def later_price_of(client: AdminClient, word: str) -> str:
    """Return the id of the price that is not in force yet, which its model names."""
    if word.startswith("price_"):
        return word
    from fairserve.platform.db.base import utc_now

    found, now = client.items("/admin/prices", model=word), utc_now()
    later = [price for price in found if datetime.fromisoformat(price["valid_from"]) > now]
    return _one(later, "model", word, "later price", "fairserve price list")


def app_path(client: AdminClient, word: str, tenant: str | None, *, deleted: bool = False) -> str:
    """Return the path of an app."""
    return path_of("v1", "apps", app_of(client, word, tenant, deleted=deleted))


def _one(items: Iterable[Mapping[str, Any]], field: str, word: str, kind: str, command: str) -> str:
    ids = [str(item["id"]) for item in items if item[field] == word]
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise CommandError(f"there is no {kind} {word!r}; see {command}", FAILED)
    found = ", ".join(ids)
    raise CommandError(f"{len(ids)} objects are a {kind} {word!r}: {found}; name one id", FAILED)
