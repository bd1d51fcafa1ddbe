"""``fairserve webhook``: manages webhooks. A signing secret is printed once."""

from __future__ import annotations

import argparse
from typing import Any

from fairserve.platform.background.webhooks.event_types import TYPES
from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.server.admin_cli.client import Client, path_of
from fairserve.platform.server.admin_cli.commands import (
    Act,
    Actions,
    add,
    add_page,
    changes,
    page_query,
    show,
    show_page,
)
from fairserve.platform.server.admin_cli.fields import given

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


def add_commands(actions: Actions) -> None:
    """Add the commands."""
    new = _add(actions, "add", "register a URL; prints its signing secret, once", _register)
    new.add_argument("target", metavar="URL", help="https, and a host with public addresses only")
    _add_events(new, required=True)
    new.add_argument("--description", default=argparse.SUPPRESS)

    add_page(_add(actions, "list", "list webhooks", _list))

    change = _of_one(actions, "set", "change a webhook, disable it, or enable it again", _set)
    change.add_argument(
        "--to", dest="target", metavar="URL", default=argparse.SUPPRESS, help="another URL"
    )
    _add_events(change, required=False)
    change.add_argument("--description", default=argparse.SUPPRESS)
    switch = change.add_mutually_exclusive_group()
    for flag, value in (("--enable", True), ("--disable", False)):
        switch.add_argument(
            flag, dest="enabled", action="store_const", const=value, default=argparse.SUPPRESS
        )

    _of_one(actions, "rotate", "make a new signing secret, and print it, once", _rotate)
    _of_one(actions, "remove", "delete a webhook, with its deliveries", _remove)
    _of_one(actions, "test", "queue a webhook.test event", _test)

    sent = _of_one(
        actions, "deliveries", "list deliveries: delivered, pending or dead", _deliveries
    )
    sent.add_argument("--state", choices=("pending", "delivered", "dead"))
    add_page(sent)

    again = _of_one(actions, "replay", "send dead deliveries again, or one event", _replay)
    again.add_argument("--event", metavar="ID", help="only this event, delivered or dead")


def _add(actions: Actions, name: str, text: str, act: Act) -> OneLineParser:
    parser = add(actions, name, text, act)
    parser.add_argument("--tenant", metavar="ID", help="tenant of the webhook, for an admin key")
    return parser


def _of_one(actions: Actions, name: str, text: str, act: Act) -> OneLineParser:
    parser = _add(actions, name, text, act)
    parser.add_argument("id", metavar="ID", help="wh_...")
    return parser


def _add_events(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--events",
        type=lambda text: [name.strip() for name in text.split(",")],
        required=required,
        metavar="A,B",
        default=argparse.SUPPRESS,
        help=f"events to send: {', '.join(TYPES)}",
    )


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that were given; ``--url`` is the server's."""
    body = given(arguments, "events", "description", "enabled")
    return body | ({"url": arguments.target} if hasattr(arguments, "target") else {})


def _register(client: Client, arguments: argparse.Namespace) -> None:
    body = _body(arguments)
    show(arguments, client.call("POST", "/v1/webhooks", body, tenant=arguments.tenant))


def _list(client: Client, arguments: argparse.Namespace) -> None:
    query = page_query(arguments)
    page = client.call("GET", "/v1/webhooks", tenant=arguments.tenant, **query)
    show_page(arguments, page, *_COLUMNS)


def _set(client: Client, arguments: argparse.Namespace) -> None:
    body = changes(_body(arguments))
    show(arguments, _call(client, arguments, "PATCH", body=body))


def _rotate(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "POST", "rotate"))


def _remove(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "DELETE"))


def _test(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "POST", "test"))


def _deliveries(client: Client, arguments: argparse.Namespace) -> None:
    query = {"state": arguments.state, **page_query(arguments)}
    show_page(arguments, _call(client, arguments, "GET", "deliveries", **query), *_DELIVERIES)


def _replay(client: Client, arguments: argparse.Namespace) -> None:
    one = () if arguments.event is None else ("deliveries", arguments.event)
    show(arguments, _call(client, arguments, "POST", *one, "replay"))


def _call(
    client: Client,
    arguments: argparse.Namespace,
    method: str,
    *more: str,
    body: dict[str, Any] | None = None,
    **query: Any,
) -> Any:
    path = path_of("v1", "webhooks", arguments.id, *more)
    return client.call(method, path, body, tenant=arguments.tenant, **query)
