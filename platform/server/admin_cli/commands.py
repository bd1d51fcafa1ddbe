"""Flags that all admin commands share, and their output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.server.admin_cli.client import DEFAULT_URL, Client, UsageError
from fairserve.platform.server.admin_cli.output import print_json, print_one, print_page

Actions: TypeAlias = "argparse._SubParsersAction[OneLineParser]"
Act = Callable[[Client, argparse.Namespace], None]


def add(actions: Actions, name: str, text: str, act: Act) -> OneLineParser:
    """Add a command; ``act`` runs it and prints the result."""
    parser = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
    server = parser.add_argument_group("the server")
    server.add_argument(
        "--url",
        help=f"its URL. Environment: FAIRSERVE_URL. Default: {DEFAULT_URL}",
    )
    server.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="a file with the API key. Default: the environment's FAIRSERVE_API_KEY. A key has no"
        " flag, because a process list shows flags.",
    )
    server.add_argument("--json", action="store_true", help="print the server's answer as it is")
    parser.set_defaults(act=act)
    return parser


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a list."""
    parser.add_argument("--limit", type=int, metavar="N", help="rows at most")
    parser.add_argument("--offset", type=int, metavar="N", help="rows to skip")


def page_query(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the requested part of a list."""
    return {"limit": arguments.limit, "offset": arguments.offset}


def show(arguments: argparse.Namespace, answer: Any) -> None:
    """Print one object."""
    if arguments.json:
        print_json(answer)
    else:
        print_one(answer)


def show_page(arguments: argparse.Namespace, page: Any, *columns: str) -> None:
    """Print a part of a list."""
    if arguments.json:
        print_json(page)
    else:
        print_page(page, columns)


def changes(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body that is not empty. Raises UsageError for an empty one."""
    if not body:
        raise UsageError("nothing to change: name a flag (--help lists them)")
    return body


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UsageError."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
