"""``fairserve tenant | app | key | price | user | webhook``: the management API from a shell.

Exit codes: 0 done; 1 the server refused or does not answer, with its message on stderr; 2 wrong use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser
from fairserve.platform.server.admin_cli import apps, keys, prices, tenants, users, webhooks
from fairserve.platform.server.admin_cli.client import (
    DEFAULT_URL,
    Client,
    ServerError,
    UsageError,
    read_key,
)
from fairserve.platform.server.admin_cli.commands import Act

REFUSED = 1
NOUNS = {
    "tenant": ("tenants: who pays", tenants.add_commands),
    "app": ("a tenant's apps, with their token profiles and limits", apps.add_commands),
    "key": ("API keys of apps, tenants and admins", keys.add_commands),
    "price": ("what the tokens of models cost", prices.add_commands),
    "user": ("settings and data of end users", users.add_commands),
    "webhook": ("where a tenant is told of events", webhooks.add_commands),
}


def guide_of(noun: str) -> str:
    """The guide that describes a noun's commands."""
    return f"docs/guide/{'webhooks' if noun == 'webhook' else 'tenants'}.md"


def parser(noun: str) -> OneLineParser:
    """The parser of one noun's commands."""
    text, add_commands = NOUNS[noun]
    top = OneLineParser(
        prog=f"fairserve {noun}",
        description=f"Manage {text}. {guide_of(noun)} has examples.",
        allow_abbrev=False,
    )
    add_commands(top.add_subparsers(dest="action", required=True, metavar="COMMAND"))
    return top


def main(argv: Sequence[str]) -> int:
    """Carry out a command, its noun first; returns the exit code."""
    noun, *rest = argv
    arguments = parser(noun).parse_args(rest)
    act: Act = arguments.act
    try:
        url = arguments.url or os.environ.get("FAIRSERVE_URL") or DEFAULT_URL
        act(Client(url, read_key(arguments.key_file)), arguments)
    except UsageError as error:
        return _fail(noun, str(error), USAGE_ERROR)
    except ServerError as error:
        return _fail(noun, str(error), REFUSED)
    return 0


def _fail(noun: str, message: str, code: int) -> int:
    print(f"fairserve {noun}: {message}", file=sys.stderr)
    return code
