"""``fairserve app``: manages a tenant's apps with its key, or an admin key and ``--tenant``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from fairserve.platform.base.command_line import CommandGroup, option
from fairserve.platform.server.admin_cli.client import AdminClient, path_of
from fairserve.platform.server.admin_cli.commands import Id, changes, command, read_json
from fairserve.platform.server.admin_cli.fields import (
    NAMES,
    NUMBER,
    WHOLE,
    body_of,
    contract_of,
    contract_options,
    limit,
)
from fairserve.platform.server.admin_cli.names import app_of, app_path

app = CommandGroup(
    help="Manage a tenant's apps, with their token profiles and limits. docs/guide/tenants.md has"
    " examples."
)
_Tenant = Annotated[
    str | None, Option(metavar="TENANT", help="Tenant of the app, for an admin key.")
]
_PROFILE_FILE = "JSON file with the token profile, as in the API."
_Profile = Annotated[Path | None, Option(metavar="FILE", help=_PROFILE_FILE)]
_OVERLOAD = "Limits that apply under overload (none removes a limit)"
_CLIENTS = "Clients of the app"
_SETTINGS = [
    option(
        "weight",
        float,
        metavar="WEIGHT",
        help="Weight of its calls, for admin keys: 2 is entitled to twice the service of 1.",
    ),
    limit(
        "priority_weight",
        NUMBER,
        "WEIGHT",
        "For admin keys: factor on the service of its calls with the service_tier priority, from 1"
        " (none: it may have none).",
        _CLIENTS,
    ),
    limit(
        "user_headers",
        NAMES,
        "A,B",
        "Headers that name the end user of a call (none: x-user-id).",
        _CLIENTS,
    ),
    limit(
        "cors_origins",
        NAMES,
        "URL,URL",
        "Origins of pages in browsers that may call, such as https://app.example.com (none: no page).",
        _CLIENTS,
    ),
    limit(
        "run_rules",
        NAMES,
        "A,B",
        "Rules that assign calls to runs, such as interaction_header,aliases (none: the server's).",
        _CLIENTS,
    ),
    limit("user_rpm", WHOLE, "N", "Calls per minute of each user.", _OVERLOAD),
    limit("app_rpm", WHOLE, "N", "Calls per minute of the app as a whole.", _OVERLOAD),
    limit(
        "new_users_per_minute",
        WHOLE,
        "N",
        "New users per minute: those without a call for a day (none: 30 with a --user-rpm and without"
        " an --app-rpm, else no limit).",
        _OVERLOAD,
    ),
    *contract_options("Limits of the app as a whole, which always apply"),
    *contract_options("Limits of each of its users, which always apply", "user_"),
]


@command(app, *_SETTINGS)
def register(
    client: AdminClient,
    name: Annotated[str, Argument(metavar="NAME")],
    profile: Annotated[Path, Option(metavar="FILE", help=_PROFILE_FILE)],
    tenant: _Tenant = None,
    **given: Any,
) -> Any:
    """Register an app, and print its first key, once."""
    body = {"name": name} | _body(profile, given)
    return client.call("POST", "/v1/apps", body, tenant=tenant)


@command(
    app,
    name="list",
    columns=("id", "name", "tenant_id", "state", "weight", "contract", "user_contract"),
)
def list_apps(
    client: AdminClient,
    deleted: Annotated[bool, Option("--deleted", help="Those that are deleted.")] = False,
    name: Annotated[
        str | None, Option(metavar="PART", help="Those whose names contain it.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Those of all tenants, for admin keys.")] = False,
    tenant: _Tenant = None,
    **page: Any,
) -> Any:
    """List apps."""
    path = "/admin/apps" if every else "/v1/apps"
    return client.call("GET", path, tenant=tenant, deleted=deleted, name=name, **page)


@command(app, option("name", str, metavar="NAME", help="New name."), *_SETTINGS, name="set")
def change(
    client: AdminClient, id: Id, profile: _Profile = None, tenant: _Tenant = None, **given: Any
) -> Any:
    """Change an app's name, profile, weight, clients or limits."""
    body = changes(body_of(given, "name") | _body(profile, given))
    return client.call("PATCH", app_path(client, id, tenant), body, tenant=tenant)


@command(app, name="profile", columns=("version", "since", "source", "author", "reason"))
def show_profile(
    client: AdminClient,
    id: Id,
    history: Annotated[
        bool, Option("--history", help="Former profiles, and why they changed.")
    ] = False,
    mode: Annotated[
        Literal["learned", "declared", "pinned"] | None,
        Option(
            help="For admin keys: learn it, use the declared one, or pin the current one or --profile."
        ),
    ] = None,
    profile: _Profile = None,
    tenant: _Tenant = None,
    **page: Any,
) -> Any:
    """Show or choose the profile of an app."""
    if mode is not None:
        body = {"mode": mode} | ({} if profile is None else {"profile": read_json(profile)})
        path = path_of("admin", "apps", app_of(client, id, tenant))
        return client.call("PUT", f"{path}/profile", body)
    path = app_path(client, id, tenant) + "/profile"
    if history:
        return client.call("GET", f"{path}/history", tenant=tenant, **page)
    return client.call("GET", path, tenant=tenant)


@command(app)
def show(client: AdminClient, id: Id, tenant: _Tenant = None) -> Any:
    """Show an app."""
    return client.call("GET", app_path(client, id, tenant), tenant=tenant)


@command(app)
def suspend(client: AdminClient, id: Id, tenant: _Tenant = None) -> Any:
    """Stop an app's keys and programs."""
    return client.call("PATCH", app_path(client, id, tenant), {"suspended": True}, tenant=tenant)


@command(app)
def resume(client: AdminClient, id: Id, tenant: _Tenant = None) -> Any:
    """Resume a suspended app."""
    return client.call("PATCH", app_path(client, id, tenant), {"suspended": False}, tenant=tenant)


@command(app)
def delete(client: AdminClient, id: Id, tenant: _Tenant = None) -> Any:
    """Delete an app; it can be restored until its retention is over."""
    return client.call("DELETE", app_path(client, id, tenant), tenant=tenant)


@command(app)
def restore(client: AdminClient, id: Id, tenant: _Tenant = None) -> Any:
    """Restore a deleted app."""
    return client.call(
        "POST", app_path(client, id, tenant, deleted=True) + "/restore", tenant=tenant
    )


def _body(profile: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        "profile": None if profile is None else read_json(profile),
        "limits": body_of(given, "user_rpm", "app_rpm", "new_users_per_minute"),
        "contract": contract_of(given),
        "user_contract": contract_of(given, "user_"),
    }
    return body_of(
        given, "weight", "priority_weight", "user_headers", "cors_origins", "run_rules"
    ) | {name: part for name, part in parts.items() if part}
