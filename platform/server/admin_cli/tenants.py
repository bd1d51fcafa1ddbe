"""``fairserve tenant``: manages tenants. Needs an admin key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument, Option

from fairserve.platform.base.command_line import CommandGroup, option
from fairserve.platform.server.admin_cli.client import AdminClient, path_of
from fairserve.platform.server.admin_cli.commands import Id, changes, command
from fairserve.platform.server.admin_cli.fields import (
    TEXT,
    body_of,
    contract_of,
    contract_options,
    limit,
)
from fairserve.platform.server.admin_cli.names import tenant_of

app = CommandGroup(help="Manage tenants. docs/guide/tenants.md has examples.")
_SETTINGS = [
    option(
        "weight",
        float,
        metavar="WEIGHT",
        help="Weight of its calls: 2 is entitled to twice the service of 1.",
    ),
    limit(
        "levels",
        TEXT,
        "LEVELS",
        "Levels that divide its share: 'tenant > user', 'tenant > app > user', or none for the levels"
        " of the system.",
    ),
    *contract_options("Limits of the tenant as a whole"),
]


@command(app, *_SETTINGS)
def create(
    client: AdminClient, name: Annotated[str, Argument(metavar="NAME")], **given: Any
) -> Any:
    """Register a tenant, and print its key, once."""
    return client.call("POST", "/admin/tenants", {"name": name} | _body(given))


@command(app, name="list", columns=("id", "name", "state", "weight", "contract"))
def list_tenants(
    client: AdminClient,
    deleted: Annotated[bool, Option("--deleted", help="Those that are deleted.")] = False,
    name: Annotated[
        str | None, Option(metavar="PART", help="Those whose names contain it.")
    ] = None,
    **page: Any,
) -> Any:
    """List tenants."""
    return client.call("GET", "/admin/tenants", deleted=deleted, name=name, **page)


@command(app, option("name", str, metavar="NAME", help="New name."), *_SETTINGS, name="set")
def change(client: AdminClient, id: Id, **given: Any) -> Any:
    """Change a tenant's name, weight, levels or limits."""
    return client.call("PATCH", _path(client, id), changes(body_of(given, "name") | _body(given)))


@command(app)
def show(client: AdminClient, id: Id) -> Any:
    """Show a tenant."""
    return client.call("GET", _path(client, id))


@command(app)
def suspend(client: AdminClient, id: Id) -> Any:
    """Stop a tenant's keys and programs."""
    return client.call("PATCH", _path(client, id), {"suspended": True})


@command(app)
def resume(client: AdminClient, id: Id) -> Any:
    """Resume a suspended tenant."""
    return client.call("PATCH", _path(client, id), {"suspended": False})


@command(app)
def delete(client: AdminClient, id: Id) -> Any:
    """Delete a tenant; it can be restored until its retention is over."""
    return client.call("DELETE", _path(client, id))


@command(app)
def restore(client: AdminClient, id: Id) -> Any:
    """Restore a deleted tenant."""
    return client.call("POST", _path(client, id, deleted=True) + "/restore")


def _body(given: Mapping[str, Any]) -> dict[str, Any]:
    body = body_of(given, "weight", "levels")
    contract = contract_of(given)
    return body | {"contract": contract} if contract else body


def _path(client: AdminClient, word: str, *, deleted: bool = False) -> str:
    return path_of("admin", "tenants", tenant_of(client, word, deleted=deleted))
