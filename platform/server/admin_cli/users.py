"""``fairserve user``: settings and stored data of end users. Settings need an admin key."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fairserve.platform.base.command_line import CommandError, CommandGroup, option
from fairserve.platform.server.admin_cli.client import AdminClient, path_of
from fairserve.platform.server.admin_cli.commands import changes, command
from fairserve.platform.server.admin_cli.fields import (
    NUMBER,
    WHOLE,
    body_of,
    contract_of,
    contract_options,
    limit,
    switch,
    switched,
)
from fairserve.platform.server.admin_cli.output import print_json
from fairserve.platform.tenancy.tenants.schemas import OnBlock

app = CommandGroup(
    help="Manage settings and data of end users. docs/guide/tenants.md has examples."
)
SETTINGS = ("weight", "priority_weight", "rpm", "blocked")
"""Fields of a user beside its quota; a request replaces all."""
_Tenant = Annotated[str, Argument(metavar="TENANT", help="Name or id of the tenant.")]
_User = Annotated[
    str, Argument(metavar="USER", help="Id of the user, as the tenant's apps send it.")
]


@command(
    app,
    option("blocked", bool, "--blocked", help="Those that are blocked."),
    name="list",
    columns=("tenant_id", "user", "weight", "priority_weight", "rpm", "blocked", "contract"),
)
def list_users(
    client: AdminClient,
    tenant: Annotated[str | None, Option(metavar="TENANT", help="Those of this tenant.")] = None,
    user: Annotated[
        str | None, Option(metavar="BEGINNING", help="Those whose ids begin like this.")
    ] = None,
    **given: Any,
) -> Any:
    """List users that have settings of their own."""
    return client.call("GET", "/admin/users", tenant=tenant, user=user, **given)


@command(app)
def show(client: AdminClient, tenant: _Tenant, user: _User) -> Any:
    """Show a user's settings."""
    return client.call("GET", _path(tenant, user))


@command(
    app,
    option("weight", float, metavar="WEIGHT", help="2 is entitled to twice the service of 1."),
    limit(
        "priority_weight",
        NUMBER,
        "WEIGHT",
        "Weight of calls with the service_tier priority, in place of the app's; or none.",
    ),
    limit(
        "rpm",
        WHOLE,
        "N",
        "Calls per minute under overload, in place of the app's --user-rpm; or none.",
    ),
    switch("blocked", "--block/--unblock", "Reject the user's calls, or no longer."),
    option(
        "on_block",
        OnBlock,
        "--on-block",
        help="What a block does to accepted calls; queued ones are cancelled by default.",
    ),
    option(
        "reason", str, "--reason", metavar="TEXT", help="Why the user is blocked, for the audit."
    ),
    *contract_options("Limits in all apps of its tenant, which always apply"),
    name="set",
)
def change(client: AdminClient, tenant: _Tenant, user: _User, **given: Any) -> Any:
    """Change a user's weights, limits or block."""
    limits = contract_of(given)
    changed = body_of(given | {"blocked": switched(given["blocked"])}, *SETTINGS)
    changes(changed | limits)
    now = client.call("GET", _path(tenant, user))
    body = {name: now[name] for name in SETTINGS} | changed | body_of(given, "on_block", "reason")
    body["contract"] = changed_contract(now["contract"], limits)
    return client.call("PUT", _path(tenant, user), body)


def changed_contract(contract: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's quota with these changes; a soft end is removed with its budget."""
    found = {name: value for name, value in {**contract, **limits}.items() if value is not None}
    if "soft_budget" not in found and "soft_end" not in limits:
        found.pop("soft_end", None)
    return found


@command(app)
def reset(client: AdminClient, tenant: _Tenant, user: _User) -> Any:
    """Return a user to the defaults."""
    return client.call("DELETE", _path(tenant, user))


@command(app)
def export(
    client: AdminClient,
    tenant: _Tenant,
    user: _User,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The file; default: standard output.")
    ] = None,
) -> None:
    """Export all data that is stored about a user, as JSON."""
    answer = client.call("GET", "/v1/user-data", user=user, tenant=tenant)
    if out is None:
        print_json(answer)
        return
    text = json.dumps(answer, indent=2, ensure_ascii=False) + "\n"
    try:
        # Readable by its owner only, whatever the umask.
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}") from None


@command(app)
def erase(
    client: AdminClient,
    tenant: _Tenant,
    user: _User,
    yes: Annotated[bool, Option("--yes", help="Confirm the erasure.")] = False,
) -> Any:
    """Erase a user's data; this cannot be undone."""
    if not yes:
        raise CommandError(f"erasing {user!r} cannot be undone; confirm with --yes")
    return client.call("DELETE", "/v1/user-data", user=user, tenant=tenant)


def _path(tenant: str, user: str) -> str:
    return path_of("admin", "users", tenant, user)
