"""``fairserve price``: prices of the tokens of models, with history."""

from __future__ import annotations

import argparse

from fairserve.platform.server.admin_cli.client import Client, path_of
from fairserve.platform.server.admin_cli.commands import (
    Actions,
    add,
    add_page,
    page_query,
    show,
    show_page,
)
from fairserve.platform.server.admin_cli.fields import given

_COLUMNS = ("id", "model", "input", "cached_input", "output", "currency", "valid_from")


def add_commands(actions: Actions) -> None:
    """Add the commands."""
    price = add(actions, "set", "set a model's price from now on, or from a later time", _set)
    price.add_argument("model", metavar="MODEL", help="the served model; * for all without a price")
    for name, needed, text in (
        ("input", True, "price of a million prompt tokens"),
        ("cached-input", False, "price of a million cached prompt tokens (default: as --input)"),
        ("output", True, "price of a million output tokens"),
    ):
        price.add_argument(
            f"--{name}",
            type=float,
            required=needed,
            metavar="AMOUNT",
            default=argparse.SUPPRESS,
            help=text,
        )
    price.add_argument(
        "--valid-from",
        metavar="TIME",
        default=argparse.SUPPRESS,
        help="ISO 8601 with a zone (default: now)",
    )
    listed = add(actions, "list", "list prices, past ones included, newest first", _list)
    listed.add_argument("--model", metavar="MODEL", help="only prices of this model")
    add_page(listed)
    deleted = add(actions, "delete", "delete a price that is not valid yet", _delete)
    deleted.add_argument("id", metavar="ID")


def _set(client: Client, arguments: argparse.Namespace) -> None:
    body = given(arguments, "model", "input", "cached_input", "output", "valid_from")
    show(arguments, client.call("POST", path_of("admin", "prices"), body))


def _list(client: Client, arguments: argparse.Namespace) -> None:
    query = {"model": arguments.model, **page_query(arguments)}
    show_page(arguments, client.call("GET", path_of("admin", "prices"), **query), *_COLUMNS)


def _delete(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("DELETE", path_of("admin", "prices", arguments.id)))
