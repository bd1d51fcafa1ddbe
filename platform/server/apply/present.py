"""Read the present state of a server through its API, as a declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.fleet.schemas import ApiWorker
from fairserve.platform.server.admin_cli.client import AdminClient
from fairserve.platform.server.apply.declaration import (
    DEFAULT_MANAGER,
    Declaration,
    DeclaredApp,
    DeclaredTenant,
    DeclaredUser,
    DeclaredWebhook,
)
from fairserve.platform.server.apply.plan import Key, ServerState, start_of
from fairserve.platform.tenancy.apps.schemas import LimitsBody
from fairserve.platform.tenancy.prices.schemas import PriceBody
from fairserve.platform.tuning.schemas import ThrottlingChoice

Value = TypeVar("Value")


def read_present(client: AdminClient, now: datetime) -> ServerState:
    """Return what can be declared, with its ids and managers. Raises CommandError.

    Suspended tenants and apps are read as others, deleted ones are not read. A user is read if its
    weight or limits differ from the defaults, or if a declaration manages it.
    """
    return _Reading(client, now).present()


class _Reading:
    """The objects that were read so far."""

    def __init__(self, client: AdminClient, now: datetime) -> None:
        self._client, self._now = client, now
        self._ids: dict[Key, str] = {}
        self._managers: dict[Key, str] = {}
        self._tenants: dict[str, DeclaredTenant] = {}
        self._names: dict[str, str] = {}

    def present(self) -> ServerState:
        prices = sorted(self._prices(), key=lambda price: (price.model, start_of(price)))
        throttling, workers, aliases = self._throttling(), self._workers(), self._aliases()
        self._read_tenants()
        managers = set(self._managers.values())
        declaration = Declaration(
            managed_by=managers.pop() if len(managers) == 1 else DEFAULT_MANAGER,
            throttling=throttling,
            prices=prices,
            workers=_sorted(workers),
            aliases=aliases,
            tenants=_sorted({name: _in_order(each) for name, each in self._tenants.items()}),
        )
        return ServerState(declaration, self._ids, self._managers)

    def _read_tenants(self) -> None:
        for answer in self._client.items("/admin/tenants"):
            self._names[answer["id"]] = answer["name"]
            self._known(Key("tenant", (answer["name"],)), answer)
            self._tenants[answer["name"]] = _read(DeclaredTenant, answer)
        for answer in self._client.items("/admin/apps"):
            limits = {name: answer["limits"][name] for name in LimitsBody.model_fields}
            app = _read(DeclaredApp, answer | {"limits": limits})
            if (name := self._within("app", answer["name"], answer)) is not None:
                self._tenants[name].apps[answer["name"]] = app
        for answer in self._client.items("/admin/users"):
            user = _read(DeclaredUser, answer)
            if user == DeclaredUser() and answer["managed_by"] is None:
                continue
            if (name := self._within("user", answer["user"], answer)) is not None:
                self._tenants[name].users[answer["user"]] = user
        for answer in self._client.items("/admin/webhooks"):
            url = answer["url"]
            name = self._names.get(answer["tenant_id"])
            if name is not None and url in self._tenants[name].webhooks:
                raise CommandError(
                    f"tenant {name!r} has two webhooks of {url.partition('?')[0]}; a declaration has"
                    " one of each URL: remove one of them (fairserve webhook remove)",
                    FAILED,
                )
            if (name := self._within("webhook", url, answer)) is not None:
                self._tenants[name].webhooks[url] = _read(DeclaredWebhook, answer)

    def _within(self, kind: Any, name: str, answer: Mapping[str, Any]) -> str | None:
        """Return the name of an object's tenant; None if that is deleted."""
        tenant = self._names.get(answer["tenant_id"])
        if tenant is not None:
            self._known(Key(kind, (tenant, name)), answer)
        return tenant

    def _known(self, key: Key, answer: Mapping[str, Any]) -> None:
        if "id" in answer:
            self._ids[key] = answer["id"]
        if answer["managed_by"] is not None:
            self._managers[key] = answer["managed_by"]

    def _prices(self) -> Iterator[PriceBody]:
        """Yield the price in force of each model, without a start, and those that begin later."""
        in_force = set()
        for answer in self._client.items("/admin/prices"):  # of a model, newest first
            start = _time(answer["valid_from"])
            # A price from "now" on begins when it is made, by the clock of the server.
            later = start > max(self._now, _time(answer["created_at"]))
            if not later and answer["model"] in in_force:
                continue
            if not later:
                in_force.add(answer["model"])
            price = _read(PriceBody, answer | {"valid_from": start if later else None})
            if price.cached_input == price.input:
                price.cached_input = None
            if price.reasoning == price.output:
                price.reasoning = None
            when = start.isoformat() if later else ""
            self._known(Key("price", (answer["model"], when)), answer)
            yield price

    def _throttling(self) -> ThrottlingChoice | None:
        """Return the newest choice; None if the settings of the server are in force."""
        newest = self._client.call("GET", "/admin/throttling/history", limit=1)["items"]
        if not newest:
            return None
        self._ids[Key("throttling", ())] = str(newest[0]["version"])
        choice: ThrottlingChoice = _read(ThrottlingChoice, newest[0])
        return choice

    def _workers(self) -> dict[str, ApiWorker]:
        found = {}
        for answer in self._client.items("/admin/cluster/workers"):
            if answer["source"] == "api" and answer["state"] != "leaving":
                self._known(Key("worker", (answer["id"],)), answer)
                values = answer | {"model": answer["configured_model"]}
                found[answer["id"]] = _read(ApiWorker, values)
        return found

    def _aliases(self) -> dict[str, dict[str, float]]:
        found = {}
        for answer in self._client.items("/admin/cluster/aliases"):
            if answer["source"] == "api":
                self._known(Key("alias", (answer["name"],)), answer)
                found[answer["name"]] = answer["target"]
        return found


def _in_order(tenant: DeclaredTenant) -> DeclaredTenant:
    """Return a tenant whose objects are sorted by name, in whatever order they were created."""
    parts = ("apps", "users", "webhooks")
    return tenant.model_copy(update={name: _sorted(getattr(tenant, name)) for name in parts})


def _sorted(found: Mapping[str, Value]) -> dict[str, Value]:
    return dict(sorted(found.items()))


def _read(shape: Any, answer: Mapping[str, Any]) -> Any:
    """Return the declared form of an answer: its fields that can be declared."""
    return shape.model_validate(
        {name: answer[name] for name in shape.model_fields if name in answer}
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
