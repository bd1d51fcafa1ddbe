"""Execute a plan through the API of a server, one change after the other; the first error ends it.

Changes that were made stay, and another plan has the rest. A change sends only the fields that differ,
so that others may change the rest of an object at the same time.

Weakness: between the plan and a change somebody may change the same field; the later change stays, and
the audit log has both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.server.admin_cli.client import (
    AdminClient,
    RejectedRequestError,
    path_of,
)
from fairserve.platform.server.admin_cli.flag_errors import without_request
from fairserve.platform.server.admin_cli.users import SETTINGS, changed_contract
from fairserve.platform.server.apply.key_files import KeyFiles, renewal
from fairserve.platform.server.apply.plan import (
    IDLE_TIMEOUT,
    MANAGER,
    Change,
    ChangePlan,
    Key,
    Kind,
    Values,
    nested,
)

WITH_SECRET: frozenset[Kind] = frozenset({"tenant", "app", "webhook"})
"""Kinds of objects whose creation shows a key or a signing secret."""
SERVER_ERRORS = 500
"""Statuses from here on may be of a proxy, whose server may have made the change."""


class Execution:
    """The execution of one plan."""

    def __init__(self, client: AdminClient, ids: Mapping[Key, str], files: KeyFiles | None) -> None:
        """``ids`` are those of the present objects; ``files`` may be None if nothing has a secret."""
        self.made = 0
        """Changes that are made."""
        self._client = client
        self._ids = dict(ids)
        self._files = files
        self._act: dict[Kind, Callable[[Change], Any]] = {
            "throttling": self._throttling,
            "price": self._price,
            "worker": self._worker,
            "alias": self._alias,
            "tenant": self._tenant,
            "app": self._app,
            "user": self._user,
            "webhook": self._webhook,
        }

    def run(self, plan: ChangePlan) -> Iterator[tuple[Change, Path | None]]:
        """Yield each change once it is made, with the file of the secret that it made.

        Raises CommandError, which names the object, at the first error and at Ctrl-C.
        """
        for change in plan.changes:
            try:
                answer = self._act[change.key.kind](change)
            except (CommandError, KeyboardInterrupt) as error:
                raise _named(change, error) from None
            self.made += 1
            path = None
            if change.action == "create" and change.key.kind in WITH_SECRET:
                self._ids[change.key] = answer["id"]
                assert self._files is not None
                secret = answer["secret" if change.key.kind == "webhook" else "api_key"]
                path = self._files.store(change.key, secret)
            yield change, path

    def _price(self, change: Change) -> None:
        """A price that did not begin is replaced; the one in force gets a successor from now on."""
        model, start = change.key.names
        if change.id and (start or change.action == "delete"):
            self._client.call("DELETE", path_of("admin", "prices", change.id))
        if change.action != "delete":
            body = {"model": model, **change.after} | ({"valid_from": start} if start else {})
            self._client.call("POST", "/admin/prices", body)

    def _throttling(self, change: Change) -> None:
        """All parameters are replaced, so the version of the plan must still be in force."""
        body = _given({name: each for name, each in change.after.items() if name != MANAGER})
        expected = {"expected_version": int(change.id or 0)}
        try:
            self._client.call("PUT", "/admin/throttling", body | expected)
        except RejectedRequestError as error:
            if error.param != "expected_version":
                raise
            raise CommandError("it was changed after the plan was made", FAILED) from None

    def _worker(self, change: Change) -> None:
        (name,) = change.key.names
        path = path_of("admin", "cluster", "workers", name)
        if change.action == "create":
            self._client.call("POST", "/admin/cluster/workers", {"id": name, **change.after})
        elif change.action == "delete":
            self._client.call("DELETE", path)
        else:
            self._client.call("PUT", path, change.after)

    def _alias(self, change: Change) -> None:
        path = path_of("admin", "cluster", "aliases", *change.key.names)
        if change.action == "delete":
            self._client.call("DELETE", path)
        else:
            self._client.call("PUT", path, change.after)

    def _tenant(self, change: Change) -> Any:
        (name,) = change.key.names
        path = path_of("admin", "tenants", change.id)
        if change.action == "create":
            return self._client.call(
                "POST", "/admin/tenants", {"name": name} | _given(change.after)
            )
        if change.action == "delete":
            return self._client.call("DELETE", path)
        return self._client.call("PATCH", path, _changed(change))

    def _app(self, change: Change) -> Any:
        tenant = self._tenant_of(change)
        path = path_of("v1", "apps", change.id)
        if change.action == "create":
            body = {"name": change.key.names[1]} | _given(change.after)
            return self._client.call("POST", "/v1/apps", body, tenant=tenant)
        if change.action == "delete":
            return self._client.call("DELETE", path, tenant=tenant)
        body = _changed(change)
        if "profile" in body:  # a profile is replaced as a whole
            whole = {**change.after, IDLE_TIMEOUT: _idle_timeout(change)}
            body["profile"] = nested(whole)["profile"]
        return self._client.call("PATCH", path, body, tenant=tenant)

    def _user(self, change: Change) -> None:
        """Read the settings right before: others keep what is not declared, above all a block."""
        path = path_of("admin", "users", self._tenant_of(change), change.key.names[1])
        now = self._client.call("GET", path)
        if change.action != "delete":
            body = _changed(change)
            limits = changed_contract(now["contract"], body.pop("contract", {}))
            kept = {name: now[name] for name in SETTINGS}
            self._client.call("PUT", path, kept | body | {"contract": limits})
        elif now["blocked"]:
            self._client.call("PUT", path, {MANAGER: None, "blocked": True})
        else:
            self._client.call("DELETE", path)

    def _webhook(self, change: Change) -> Any:
        tenant = self._tenant_of(change)
        path = path_of("v1", "webhooks", change.id)
        if change.action == "create":
            body = {"url": change.key.names[1], **change.after}
            return self._client.call("POST", "/v1/webhooks", body, tenant=tenant)
        if change.action == "delete":
            return self._client.call("DELETE", path, tenant=tenant)
        return self._client.call("PATCH", path, _changed(change), tenant=tenant)

    def _tenant_of(self, change: Change) -> str:
        return self._ids[Key("tenant", change.key.names[:1])]


def _named(change: Change, error: CommandError | KeyboardInterrupt) -> CommandError:
    """Return the error of a change, with what helps if the server may have made it without an answer."""
    reason = without_request(error.message) if isinstance(error, CommandError) else "interrupted"
    rejected = isinstance(error, RejectedRequestError) and error.status < SERVER_ERRORS
    if change.action == "create" and change.key.kind in WITH_SECRET and not rejected:
        reason += (
            f"; if it was created, its secret is lost, make another one: {renewal(change.key)}"
        )
    return CommandError(f"{change.key}: {reason}", FAILED)


def _given(values: Values) -> dict[str, Any]:
    """Return the body of a new object: nulls are the defaults."""
    return nested({name: value for name, value in values.items() if value is not None})


def _changed(change: Change) -> dict[str, Any]:
    return nested({name: after for name, _, after in change.differences()})


def _idle_timeout(change: Change) -> Any:
    """Return the declared idle timeout; one that is not declared stays."""
    declared = change.after[IDLE_TIMEOUT]
    return change.before[IDLE_TIMEOUT] if declared is None else declared
