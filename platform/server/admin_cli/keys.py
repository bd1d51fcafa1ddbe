"""``fairserve key``: manages keys of apps, tenants and admins. A new key is printed once."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from fairserve.platform.base.command_line import CommandError, CommandGroup, option
from fairserve.platform.server.admin_cli.client import AdminClient, path_of
from fairserve.platform.server.admin_cli.commands import changes, command
from fairserve.platform.server.admin_cli.fields import TEXT, body_of, limit
from fairserve.platform.server.admin_cli.names import app_path, key_of

app = CommandGroup(
    help="Manage API keys of apps, tenants and admins. docs/guide/tenants.md has examples."
)
_OWNER = "Owner of the keys (one is required)"
_FLAGS = [
    option(
        "app", str, metavar="APP", help="Keys of this app, by name or id.", rich_help_panel=_OWNER
    ),
    option(
        "tenant_id",
        str,
        metavar="TENANT",
        help="Keys of this tenant, by name or id, for admin keys.",
        rich_help_panel=_OWNER,
    ),
    option("admin", bool, "--admin", help="The admin keys.", rich_help_panel=_OWNER),
    option("tenant", str, metavar="TENANT", help="Tenant of the app, for an admin key."),
]
_ROLE = option(
    "role",
    str,
    metavar="ROLE",
    help="Role of an admin key: viewer, operator, or admin, the default.",
)
_Key = Annotated[str, Argument(metavar="KEY", help="Its name or its id, key_...")]


@command(
    app,
    option("name", str, metavar="NAME", help="Name for people."),
    option(
        "expires_at",
        str,
        "--expires-at",
        "--expires",
        metavar="TIME",
        help="ISO 8601 with a zone, such as 2027-01-31T12:00:00Z.",
    ),
    _ROLE,
    *_FLAGS,
)
def create(client: AdminClient, **given: Any) -> Any:
    """Create a further key, and print it, once."""
    return _call(client, given, "POST", body=body_of(given, "name", "expires_at", "role"))


@command(
    app,
    *_FLAGS,
    name="list",
    columns=(
        "id",
        "prefix",
        "role",
        "name",
        "created_at",
        "expires_at",
        "revoked_at",
        "last_used_at",
    ),
)
def list_keys(client: AdminClient, **given: Any) -> Any:
    """List keys by prefix, revoked ones included."""
    return _call(client, given, "GET", limit=given["limit"], offset=given["offset"])


@command(app, *_FLAGS)
def rotate(
    client: AdminClient,
    grace: Annotated[
        float, Option(metavar="SECONDS", help="Time for which the others remain valid.")
    ] = 0.0,
    **owner: Any,
) -> Any:
    """Replace all keys by a new one, and print it, once."""
    return _call(client, owner, "POST", "rotate", body={"grace_s": grace})


@command(app, *_FLAGS)
def rename(
    client: AdminClient,
    key: _Key,
    name: Annotated[str, Argument(metavar="NAME", help="Name for people.")],
    **owner: Any,
) -> Any:
    """Rename a key."""
    return _call(client, owner, "PATCH", key=key, body={"name": name})


@command(
    app,
    option("name", str, metavar="NAME", help="Name for people."),
    _ROLE,
    limit("expires", TEXT, "TIME", "ISO 8601 with a zone, or none."),
)
def change(client: AdminClient, key: _Key, **given: Any) -> Any:
    """Change name, role or expiry of an admin key."""
    body = body_of(given, "name", "role", "expires")
    if "expires" in body:
        body["expires_at"] = body.pop("expires")
    path = path_of("admin", "keys")
    return client.call("PATCH", f"{path}/{key_of(client, key, path, None)}", changes(body))


@command(app, *_FLAGS)
def revoke(client: AdminClient, key: _Key, **owner: Any) -> Any:
    """Revoke a key."""
    return _call(client, owner, "DELETE", key=key)


def _call(
    client: AdminClient,
    owner: dict[str, Any],
    method: str,
    *more: str,
    key: str | None = None,
    body: dict[str, Any] | None = None,
    **query: Any,
) -> Any:
    if sum(bool(owner[name]) for name in ("app", "tenant_id", "admin")) != 1:
        raise CommandError("name the owner of the keys by one of --app, --tenant-id and --admin")
    tenant = owner.get("tenant")
    if owner["admin"]:
        path = path_of("admin", "keys")
    elif owner["tenant_id"]:
        path = path_of("admin", "tenants", owner["tenant_id"]) + "/keys"
    else:
        path, query["tenant"] = app_path(client, owner["app"], tenant) + "/keys", tenant
    if key is not None:
        more = (key_of(client, key, path, query.get("tenant")),)
    return client.call(method, "/".join((path, *more)), body, **query)
