"""Plan the changes that turn the present state into the declared one. Pure: no clock, socket or file.

Both states are objects by key, with the values of their fields. A key is made of names, and the id of a
present object is beside it. The order of changes follows what depends on what: prices, throttling,
workers and aliases, then tenants, their apps, users and webhooks, and deletions from the inside out. A
new worker joins before an old one drains, unless it has its URL. Cost: O(objects).

Weakness: an object whose name changes is a new object, and the old one is left or deleted.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from fairserve.platform.server.apply.declaration import Declaration
from fairserve.platform.tenancy.prices.schemas import PriceBody

Kind = Literal["throttling", "price", "worker", "alias", "tenant", "app", "user", "webhook"]
Action = Literal["create", "change", "delete"]
Values = Mapping[str, Any]
"""Values of an object's fields in JSON; those of a nested body have its name in front, with a dot."""

_NESTED = ("profile", "limits", "contract", "user_contract", "parameters")
MANAGER = "managed_by"
_ALWAYS = datetime.min.replace(tzinfo=UTC)
IDLE_TIMEOUT = "profile.idle_timeout_s"


class Key(NamedTuple):
    """The name of an object."""

    kind: Kind
    names: tuple[str, ...]
    """Name of the object, after that of its tenant; a price has its model and its start in ISO 8601,
    which is empty for the one in force. Throttling has no name."""

    def __str__(self) -> str:
        """Return it as people read it, without the query of a webhook's URL, which may hold a secret."""
        if self.kind == "price":
            model, start = self.names
            return f"price {model} from {start}" if start else f"price {model}"
        if self.kind == "webhook":
            tenant, url = self.names
            return f"webhook {tenant} {url.partition('?')[0]}"
        return f"{self.kind} {'/'.join(self.names)}".rstrip()


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server."""

    declaration: Declaration
    ids: Mapping[Key, str]
    """Ids of the objects that have one; the version of throttling."""
    managers: Mapping[Key, str]
    """Names of the declarations that manage objects."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object."""

    action: Action
    key: Key
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)
    id: str = ""
    """Id of the present object, if it has one."""
    within: int = 0
    """Apps, users and webhooks that are deleted with a tenant."""

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the fields that differ, with the value before and after."""
        for name, value in self.after.items():
            if self.before.get(name) != value and not _is_kept(self.key, name, value):
                yield name, self.before.get(name), value


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Changes in the order of their execution."""

    changes: tuple[Change, ...]
    left: tuple[Key, ...]
    """Objects that this declaration manages and no longer names, which stay."""

    def count(self, action: Action) -> int:
        """Return the number of changes of a kind."""
        return sum(change.action == action for change in self.changes)


def plan(declared: Declaration, present: ServerState, now: datetime, *, prune: bool) -> ChangePlan:
    """Return the changes from the present state to the declared one.

    Only with ``prune`` objects are deleted: those that the declaration manages and does not name.
    """
    there = {
        key: {**values, MANAGER: present.managers.get(key)}
        for key, values in objects_of(present.declaration, now).items()
    }
    wanted = {
        # a parameter of throttling that is no longer declared is unset
        key: {**dict.fromkeys(there.get(key, ())), **values, MANAGER: declared.managed_by}
        for key, values in objects_of(declared, now).items()
    }
    urls = {values["url"] for key, values in wanted.items() if key.kind == "worker"}
    changes = []
    for key, values in wanted.items():
        if key not in there:
            changes.append(Change("create", key, after=values))
        else:
            change = Change("change", key, there[key], values, present.ids.get(key, ""))
            if any(change.differences()):
                changes.append(change)
    own = {key for key in there.keys() - wanted if there[key][MANAGER] == declared.managed_by}
    gone = {key for key in own if prune and not _is_lasting(key)}
    for key in gone:
        if not _is_within(key, gone):
            inside = sum(_is_within(other, {key}) for other in there)
            changes.append(
                Change("delete", key, there[key], id=present.ids.get(key, ""), within=inside)
            )
    changes.sort(key=lambda change: (_rank(change, urls), change.key.names))
    return ChangePlan(tuple(changes), tuple(sorted(own - gone)))


def objects_of(declaration: Declaration, now: datetime) -> dict[Key, Values]:
    """Return the objects of a declaration with the values of all their fields.

    Of prices that began before ``now`` only the last one of each model counts, as the one in force.
    """
    found: dict[Key, Values] = {}
    for price in sorted(declaration.prices, key=start_of):
        later = start_of(price) > now
        start = start_of(price).isoformat() if later else ""
        amounts = price.model_dump(mode="json", exclude={"model", "valid_from"})
        for name, default in (("cached_input", "input"), ("reasoning", "output")):
            if amounts[name] is None:
                amounts[name] = amounts[default]
        found[Key("price", (price.model, start))] = amounts
    if declaration.throttling is not None:
        found[Key("throttling", ())] = _values(declaration.throttling)
    for name, worker in declaration.workers.items():
        found[Key("worker", (name,))] = _values(worker)
    for name, targets in declaration.aliases.items():
        found[Key("alias", (name,))] = {"target": targets}
    for name, tenant in declaration.tenants.items():
        found[Key("tenant", (name,))] = _values(tenant)
        for app_name, app in tenant.apps.items():
            found[Key("app", (name, app_name))] = _values(app)
        for user, settings in tenant.users.items():
            found[Key("user", (name, user))] = _values(settings)
        for url, webhook in tenant.webhooks.items():
            found[Key("webhook", (name, url))] = _values(webhook)
    return found


def start_of(price: PriceBody) -> datetime:
    """Return the start of a price in UTC; one without a start began before all others."""
    return price.valid_from.astimezone(UTC) if price.valid_from else _ALWAYS


def nested(values: Values) -> dict[str, Any]:
    """Return values as a body of the API: fields of the same nested body in an object."""
    body: dict[str, Any] = {}
    for name, value in values.items():
        outer, _, inner = name.partition(".")
        if inner:
            body.setdefault(outer, {})[inner] = value
        else:
            body[name] = value
    return body


def _values(body: BaseModel) -> Values:
    found: dict[str, Any] = {}
    plain = body.model_dump(mode="json", exclude={"apps", "users", "webhooks"})
    for name, value in plain.items():
        if name in _NESTED:
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


def _is_kept(key: Key, name: str, value: Any) -> bool:
    """Return whether a present value stays: an idle timeout that is not declared, who made a version."""
    unmanaged = key.kind in ("price", "throttling")
    return (name == IDLE_TIMEOUT and value is None) or (unmanaged and name == MANAGER)


def _is_lasting(key: Key) -> bool:
    """Return whether an object cannot be deleted: a price that is in force."""
    return key.kind == "price" and not key.names[1]


def _is_within(key: Key, others: set[Key]) -> bool:
    """Return whether an object belongs to one of the others, which are tenants."""
    return key.kind in ("app", "user", "webhook") and Key("tenant", key.names[:1]) in others


def _rank(change: Change, urls: Container[str]) -> int:
    """Return the step of a change; ``urls`` are those of declared workers.

    An alias takes no name that another alias still has as its target, or that a worker's model takes; a
    worker takes no URL that another still has.
    """
    kind, action = change.key.kind, change.action
    if kind == "alias":
        return {"delete": 1, "change": 5, "create": 6}[action]
    if kind == "worker" and (action != "delete" or change.before["url"] in urls):
        return {"delete": 2, "change": 3, "create": 4}[action]
    if action == "delete":
        ranks = {"webhook": 11, "user": 12, "app": 13, "tenant": 14, "worker": 15, "price": 16}
        return ranks[kind]
    return {"price": 0, "throttling": 0, "tenant": 7, "app": 8, "user": 9, "webhook": 10}[kind]
