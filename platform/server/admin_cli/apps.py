"""``fairserve app``: manages a tenant's apps with its key, or an admin key and ``--tenant``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.server.admin_cli.client import Client, path_of
from fairserve.platform.server.admin_cli.commands import (
    Actions,
    add,
    add_page,
    changes,
    page_query,
    read_json,
    show,
    show_page,
)
from fairserve.platform.server.admin_cli.fields import WHOLE, add_contract, contract_of, given

_COLUMNS = ("id", "name", "tenant_id", "state", "weight", "contract", "user_contract")


def add_commands(actions: Actions) -> None:
    """Add the commands."""
    register = _add(actions, "register", "register an app; prints its first key, once", _register)
    register.add_argument("name", metavar="NAME")
    register.add_argument("--profile", type=Path, required=True, metavar="FILE", help=_PROFILE)
    _add_settings(register)

    listed = _add(actions, "list", "list apps", _list)
    listed.add_argument("--deleted", action="store_true", help="those that are deleted")
    listed.add_argument("--name", metavar="PART", help="those whose names contain it")
    listed.add_argument("--all", action="store_true", help="of all tenants, for admin keys")
    add_page(listed)

    change = _add(actions, "set", "change an app's name, profile, weight or limits", _set)
    change.add_argument("id", metavar="ID")
    change.add_argument("--name", default=argparse.SUPPRESS)
    change.add_argument("--profile", type=Path, metavar="FILE", help=_PROFILE)
    _add_settings(change)

    profile = _add(actions, "profile", "show or choose the profile of an app", _profile)
    profile.add_argument("id", metavar="ID")
    profile.add_argument(
        "--history", action="store_true", help="former profiles, and why they changed"
    )
    profile.add_argument(
        "--mode",
        choices=("learned", "declared", "pinned"),
        help="for admin keys: learn it, use the declared one, or pin the current one or --profile",
    )
    profile.add_argument("--profile", type=Path, metavar="FILE", help=_PROFILE)
    add_page(profile)

    for name, text, act in (
        ("show", "show an app", _show),
        ("suspend", "stop an app's keys and programs", _suspend),
        ("resume", "resume a suspended app", _resume),
        ("delete", "delete an app; it can be restored until its retention is over", _delete),
        ("restore", "restore a deleted app", _restore),
    ):
        _add(actions, name, text, act).add_argument("id", metavar="ID")


_PROFILE = "a JSON file with the token profile, as in the API"


def _add(actions: Actions, name: str, text: str, act: Any) -> OneLineParser:
    parser = add(actions, name, text, act)
    parser.add_argument("--tenant", metavar="ID", help="tenant of the app, for an admin key")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weight",
        type=float,
        default=argparse.SUPPRESS,
        help="weight of its calls, for admin keys: 2 is entitled to twice the service of 1",
    )
    overload = parser.add_argument_group(
        "limits that apply under overload", "`none` removes a limit."
    )
    for name, whose in (("user_rpm", "each user"), ("app_rpm", "the app as a whole")):
        overload.add_argument(
            "--" + name.replace("_", "-"),
            type=WHOLE,
            metavar="N",
            default=argparse.SUPPRESS,
            help=f"calls per minute of {whose}",
        )
    overload.add_argument(
        "--new-users-per-minute",
        type=WHOLE,
        metavar="N",
        default=argparse.SUPPRESS,
        help="new users per minute: those without a call for a day (none: 30 with a --user-rpm and"
        " without an --app-rpm, else no limit)",
    )
    add_contract(parser, "limits of the app as a whole, which always apply")
    add_contract(parser, "limits of each of its users, which always apply", "user_")


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body = given(arguments, "name", "weight")
    if arguments.profile is not None:
        body["profile"] = read_json(arguments.profile)
    for field, found in (
        ("limits", given(arguments, "user_rpm", "app_rpm", "new_users_per_minute")),
        ("contract", contract_of(arguments)),
        ("user_contract", contract_of(arguments, "user_")),
    ):
        if found:
            body[field] = found
    return body


def _register(client: Client, arguments: argparse.Namespace) -> None:
    body = _body(arguments)
    show(arguments, client.call("POST", "/v1/apps", body, tenant=arguments.tenant))


def _list(client: Client, arguments: argparse.Namespace) -> None:
    path = "/admin/apps" if arguments.all else "/v1/apps"
    query = {"tenant": arguments.tenant, "deleted": arguments.deleted, "name": arguments.name}
    page = client.call("GET", path, **query, **page_query(arguments))
    show_page(arguments, page, *_COLUMNS)


def _show(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "GET"))


def _set(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "PATCH", changes(_body(arguments))))


def _suspend(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "PATCH", {"suspended": True}))


def _resume(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "PATCH", {"suspended": False}))


def _delete(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "DELETE"))


def _restore(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, _call(client, arguments, "POST", more="/restore"))


def _profile(client: Client, arguments: argparse.Namespace) -> None:
    if arguments.mode is not None:
        body: dict[str, Any] = {"mode": arguments.mode}
        if arguments.profile is not None:
            body["profile"] = read_json(arguments.profile)
        path = path_of("admin", "apps", arguments.id) + "/profile"
        show(arguments, client.call("PUT", path, body))
    elif arguments.history:
        path = path_of("v1", "apps", arguments.id) + "/profile/history"
        page = client.call("GET", path, tenant=arguments.tenant, **page_query(arguments))
        show_page(arguments, page, "version", "since", "source", "author", "reason")
    else:
        show(arguments, _call(client, arguments, "GET", more="/profile"))


def _call(
    client: Client,
    arguments: argparse.Namespace,
    method: str,
    body: dict[str, Any] | None = None,
    more: str = "",
) -> Any:
    path = path_of("v1", "apps", arguments.id) + more
    return client.call(method, path, body, tenant=arguments.tenant)
