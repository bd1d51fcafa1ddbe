"""``fairserve webhook``: manages webhooks. A signing secret is printed once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typer import Argument, Option

from fairserve.platform.background.webhooks.event_types import TYPES
from fairserve.platform.base.command_line import CommandGroup, option
from fairserve.platform.server.admin_cli.client import AdminClient, path_of
from fairserve.platform.server.admin_cli.commands import changes, command
from fairserve.platform.server.admin_cli.fields import body_of, switch, switched
from fairserve.platform.server.admin_cli.names import webhook_of

app = CommandGroup(
    help="Manage webhooks, which notify tenants of events. docs/guide/webhooks.md has examples."
)
_COLUMNS = ("id", "url", "events", "enabled", "disabled_reason", "failures")
_DELIVERIES = (
    "event_id",
    "type",
    "state",
    "attempts",
    "next_attempt_at",
    "last_status",
    "last_error",
    "created_at",
)
_Tenant = Annotated[
    str | None, Option(metavar="TENANT", help="Tenant of the webhook, for an admin key.")
]
_Id = Annotated[str, Argument(metavar="WEBHOOK", help="Its URL or its id, wh_...")]
_EVENTS = f"Events to send: {', '.join(TYPES)}."
_DESCRIPTION = option("description", str, metavar="TEXT", help="Text for people.")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


@command(app, _DESCRIPTION)
def add(
    client: AdminClient,
    url_of_events: Annotated[
        str, Argument(metavar="URL", help="https, and a host with public addresses only.")
    ],
    events: Annotated[Any, Option(parser=_names, metavar="A,B", help=_EVENTS)],
    tenant: _Tenant = None,
    **given: Any,
) -> Any:
    """Register a URL, and print its signing secret, once."""
    body = {"url": url_of_events, "events": events} | body_of(given, "description")
    return client.call("POST", "/v1/webhooks", body, tenant=tenant)


@command(app, name="list", columns=_COLUMNS)
def list_webhooks(client: AdminClient, tenant: _Tenant = None, **page: Any) -> Any:
    """List webhooks."""
    return client.call("GET", "/v1/webhooks", tenant=tenant, **page)


@command(
    app,
    option("to", str, metavar="URL", help="Another URL."),
    option("events", str, parser=_names, metavar="A,B", help=_EVENTS),
    switch("enabled", "--enable/--disable", "Send events, or send none."),
    _DESCRIPTION,
    name="set",
)
def change(client: AdminClient, id: _Id, tenant: _Tenant = None, **given: Any) -> Any:
    """Change a webhook, disable it, or enable it again."""
    given |= {"url": given["to"], "enabled": switched(given["enabled"])}
    body = body_of(given, "url", "events", "description", "enabled")
    return client.call("PATCH", _path(client, id, tenant), changes(body), tenant=tenant)


@command(app)
def rotate(client: AdminClient, id: _Id, tenant: _Tenant = None) -> Any:
    """Make a new signing secret, and print it, once."""
    return client.call("POST", _path(client, id, tenant, "rotate"), tenant=tenant)


@command(app)
def remove(client: AdminClient, id: _Id, tenant: _Tenant = None) -> Any:
    """Delete a webhook, with its deliveries."""
    return client.call("DELETE", _path(client, id, tenant), tenant=tenant)


@command(app, name="test")
def send_test(client: AdminClient, id: _Id, tenant: _Tenant = None) -> Any:
    """Queue a webhook.test event."""
    return client.call("POST", _path(client, id, tenant, "test"), tenant=tenant)


@command(app, columns=_DELIVERIES)
def deliveries(
    client: AdminClient,
    id: _Id,
    state: Annotated[
        Literal["pending", "delivered", "dead"] | None, Option(help="Only those of this state.")
    ] = None,
    tenant: _Tenant = None,
    **page: Any,
) -> Any:
    """List deliveries: delivered, pending or dead."""
    path = _path(client, id, tenant, "deliveries")
    return client.call("GET", path, tenant=tenant, state=state, **page)


@command(app)
def replay(
    client: AdminClient,
    id: _Id,
    event: Annotated[
        str | None, Option(metavar="ID", help="Only this event, delivered or dead.")
    ] = None,
    tenant: _Tenant = None,
) -> Any:
    """Send dead deliveries again, or one event."""
    one = () if event is None else ("deliveries", event)
    return client.call("POST", _path(client, id, tenant, *one, "replay"), tenant=tenant)


def _path(client: AdminClient, word: str, tenant: str | None, *more: str) -> str:
    return path_of("v1", "webhooks", webhook_of(client, word, tenant), *more)
