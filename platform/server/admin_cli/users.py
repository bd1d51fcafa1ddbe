"""``fairserve user``: settings and stored data of end users. Settings need an admin key."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.server.admin_cli.client import Client, UsageError, path_of
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
from fairserve.platform.server.admin_cli.fields import WHOLE, add_contract, contract_of, given
from fairserve.platform.server.admin_cli.output import print_json

_SETTINGS = ("weight", "rpm", "blocked")


def add_commands(actions: Actions) -> None:
    """Add the commands."""
    listed = add(actions, "list", "list users that have settings of their own", _list)
    listed.add_argument("--tenant", metavar="ID", help="those of this tenant")
    listed.add_argument("--user", metavar="BEGINNING", help="those whose ids begin like this")
    listed.add_argument("--blocked", action="store_true", default=None, help="those blocked")
    add_page(listed)

    _add(actions, "show", "show a user's settings", _show)
    change = _add(actions, "set", "change a user's weight, limits or block", _set)
    change.add_argument(
        "--weight",
        type=float,
        default=argparse.SUPPRESS,
        help="2 is entitled to twice the service of 1",
    )
    change.add_argument(
        "--rpm",
        type=WHOLE,
        metavar="N",
        default=argparse.SUPPRESS,
        help="calls per minute under overload, in place of the app's --user-rpm; or none",
    )
    block = change.add_mutually_exclusive_group()
    for flag, value in (("--block", True), ("--unblock", False)):
        block.add_argument(
            flag, dest="blocked", action="store_const", const=value, default=argparse.SUPPRESS
        )
    add_contract(change, "limits in all apps of its tenant, which always apply")
    _add(actions, "reset", "return a user to the defaults", _reset)

    export = _add(
        actions, "export", "export all data that is stored about a user, as JSON", _export
    )
    export.add_argument("--out", type=Path, metavar="FILE", help="output file (default: stdout)")
    erase = _add(actions, "erase", "erase a user's data; this cannot be undone", _erase)
    erase.add_argument("--yes", action="store_true", help="confirm the erasure")


def _add(actions: Actions, name: str, text: str, act: Act) -> OneLineParser:
    parser = add(actions, name, text, act)
    parser.add_argument("tenant", metavar="TENANT", help="the tenant's id")
    parser.add_argument("user", metavar="USER", help="the user's id, as the tenant's apps send it")
    return parser


def _list(client: Client, arguments: argparse.Namespace) -> None:
    query = {name: getattr(arguments, name) for name in ("tenant", "user", "blocked")}
    page = client.call("GET", "/admin/users", **query, **page_query(arguments))
    show_page(arguments, page, "tenant_id", "user", "weight", "rpm", "blocked", "contract")


def _show(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("GET", _path(arguments)))


def _set(client: Client, arguments: argparse.Namespace) -> None:
    limits = contract_of(arguments)
    changed = given(arguments, *_SETTINGS)
    changes(changed | limits)
    now = client.call("GET", _path(arguments))
    body = {name: now[name] for name in _SETTINGS} | changed
    body["contract"] = _changed(now["contract"], limits)
    show(arguments, client.call("PUT", _path(arguments), body))


def _changed(contract: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Return the server's quota with these changes; a soft end is removed with its budget."""
    found = {name: value for name, value in (contract | limits).items() if value is not None}
    if "soft_budget" not in found and "soft_end" not in limits:
        found.pop("soft_end", None)
    return found


def _reset(client: Client, arguments: argparse.Namespace) -> None:
    show(arguments, client.call("DELETE", _path(arguments)))


def _export(client: Client, arguments: argparse.Namespace) -> None:
    answer = client.call("GET", "/v1/user-data", user=arguments.user, tenant=arguments.tenant)
    if arguments.out is None:
        print_json(answer)
        return
    text = json.dumps(answer, indent=2, ensure_ascii=False) + "\n"
    try:
        # Readable by its owner only, whatever the umask.
        handle = os.open(arguments.out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{arguments.out} cannot be written: {error.strerror}") from None


def _erase(client: Client, arguments: argparse.Namespace) -> None:
    if not arguments.yes:
        raise UsageError(f"erasing {arguments.user!r} cannot be undone; confirm with --yes")
    query = {"user": arguments.user, "tenant": arguments.tenant}
    answer = client.call("DELETE", "/v1/user-data", **query)
    if answer is not None:
        show(arguments, answer)


def _path(arguments: argparse.Namespace) -> str:
    return path_of("admin", "users", arguments.tenant, arguments.user)
