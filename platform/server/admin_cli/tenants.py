"""``fairserve tenant``: manages tenants. Needs an admin key."""

from __future__ import annotations

import argparse
from typing import Any

from fairserve.platform.server.admin_cli.client import Client, path_of
from fairserve.platform.server.admin_cli.commands import (
    Actions,
    add,
    add_page,
    changes,
    page_query,
    show,
    show_page,
)
from fairserve.platform.server.admin_cli.fields import TEXT, add_contract, contract_of, given


def add_commands(actions: Actions) -> None:
    """Add the commands."""
    create = add(actions, "create", "register a tenant; prints its key, once", _create)
    create.add_argument("name", metavar="NAME")
    _add_settings(create)

    listed = add(actions, "list", "list tenants", _list)
    listed.add_argument("--deleted", action="store_true", help="those that are deleted")
    listed.add_argument("--name", metavar="PART", help="those whose names contain it")
    add_page(listed)

    change = add(actions, "set", "change a tenant's name, weight, levels or limits", _set)
    change.add_argument("id", metavar="ID")
    change.add_argument("--name", default=argparse.SUPPRESS)
    _add_settings(change)

    for name, text, act in (
        ("show", "show a tenant", _show),
        ("suspend", "stop a tenant's keys and programs", _suspend),
        ("resume", "resume a suspended tenant", _resume),
        ("delete", "delete a tenant; it can be restored until its retention is over", _delete),
        ("restore", "restore a deleted tenant", _restore),
    ):
        add(actions, name, text, act).add_argument("id", metavar="ID")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weight",
        type=float,
        default=argparse.SUPPRESS,
        help="weight of its calls: 2 is entitled to twice the service of 1",
    )
    parser.add_argument(
        "--levels",
        type=TEXT,
        default=argparse.SUPPRESS,
        metavar="LEVELS",
        help="levels that divide its share: 'tenant > user', 'tenant > app > user', or none for the"
        " levels of the system",
    )
    add_contract(parser, "limits of the tenant as a whole")


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body = given(arguments, "name", "weight", "levels")
    contract = contract_of(arguments)
    return body | {"contract": contract} if contract else body


def _create(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("POST", "/admin/tenants", _body(arguments)))


def _list(client: Client, arguments: argparse.Namespace) -> None:
    query = {"deleted": arguments.deleted, "name": arguments.name, **page_query(arguments)}
    page = client.call("GET", "/admin/tenants", **query)
    show_page(arguments, page, "id", "name", "state", "weight", "contract")


def _show(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("GET", _path(arguments)))


def _set(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("PATCH", _path(arguments), changes(_body(arguments))))


def _suspend(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("PATCH", _path(arguments), {"suspended": True}))


def _resume(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("PATCH", _path(arguments), {"suspended": False}))


def _delete(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("DELETE", _path(arguments)))


def _restore(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("POST", f"{_path(arguments)}/restore"))


def _path(arguments: argparse.Namespace) -> str:
    return path_of("admin", "tenants", arguments.id)
