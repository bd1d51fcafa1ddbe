"""``fairserve key``: manages keys of apps, tenants and admins. A new key is printed once."""

from __future__ import annotations

import argparse
from typing import Any

from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.server.admin_cli.client import Client, path_of
from fairserve.platform.server.admin_cli.commands import (
    Act,
    Actions,
    add,
    add_page,
    page_query,
    show,
    show_page,
)
from fairserve.platform.server.admin_cli.fields import given


def add_commands(actions: Actions) -> None:
    """Add the commands."""
    create = _add(actions, "create", "create a further key, and print it, once", _create)
    create.add_argument("--name", default=argparse.SUPPRESS, help="name for people")
    create.add_argument(
        "--expires-at",
        metavar="TIME",
        default=argparse.SUPPRESS,
        help="ISO 8601 with a zone, such as 2027-01-31T12:00:00Z",
    )
    add_page(_add(actions, "list", "list keys by prefix, revoked ones included", _list))
    rotate = _add(actions, "rotate", "replace all keys by a new one, and print it, once", _rotate)
    rotate.add_argument(
        "--grace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="time for which the others remain valid (default: none)",
    )
    rename = _add(actions, "rename", "rename a key", _rename)
    rename.add_argument("key", metavar="KEY", help="its id, key_...")
    rename.add_argument("name", metavar="NAME", help="name for people")
    revoke = _add(actions, "revoke", "revoke a key", _revoke)
    revoke.add_argument("key", metavar="KEY", help="its id, key_...")


def _add(actions: Actions, name: str, text: str, act: Act) -> OneLineParser:
    parser = add(actions, name, text, act)
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--app", metavar="ID", help="keys of this app")
    owner.add_argument("--tenant-id", metavar="ID", help="keys of this tenant, for admin keys")
    owner.add_argument("--admin", action="store_true", help="the admin keys, for admin keys")
    parser.add_argument("--tenant", metavar="ID", help="tenant of the app, for an admin key")
    return parser


def _create(client: Client, arguments: argparse.Namespace) -> None:
    body = given(arguments, "name", "expires_at")
    show(arguments, _call(client, arguments, "POST", body=body))


def _list(client: Client, arguments: argparse.Namespace) -> None:
    page = _call(client, arguments, "GET", **page_query(arguments))
    columns = ("id", "prefix", "name", "created_at", "expires_at", "revoked_at", "last_used_at")
    show_page(arguments, page, *columns)


def _rotate(client: Client, arguments: argparse.Namespace) -> None:
    body = {"grace_s": arguments.grace}
    show(arguments, _call(client, arguments, "POST", "rotate", body=body))


def _rename(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "PATCH", arguments.key, body={"name": arguments.name}))


def _revoke(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "DELETE", arguments.key))


def _call(
    client: Client,
    arguments: argparse.Namespace,
    method: str,
    *more: str,
    body: dict[str, Any] | None = None,
    **query: Any,
) -> Any:
    if arguments.admin:
        path = path_of("admin", "keys", *more)
    elif arguments.app is None:
        path = path_of("admin", "tenants", arguments.tenant_id, "keys", *more)
    else:
        path = path_of("v1", "apps", arguments.app, "keys", *more)
        query["tenant"] = arguments.tenant
    return client.call(method, path, body, **query)
