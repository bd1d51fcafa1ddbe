"""``fairserve tenant | app | key | price | user | webhook``: the management API from a shell.

Exit codes: 0 done; 1 the server rejected the request or does not answer, with a message on stderr;
2 wrong use.
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

REJECTED = 1
NOUNS = {
    "tenant": ("tenants", tenants.add_commands),
    "app": ("a tenant's apps, with their token profiles and limits", apps.add_commands),
    "key": ("API keys of apps, tenants and admins", keys.add_commands),
    "price": ("the prices of tokens", prices.add_commands),
    "user": ("settings and data of end users", users.add_commands),
    "webhook": ("webhooks, which notify tenants of events", webhooks.add_commands),
}


def guide_of(noun: str) -> str:
    """Return the guide that describes a noun's commands."""
    return f"docs/guide/{'webhooks' if noun == 'webhook' else 'tenants'}.md"


def parser(noun: str) -> OneLineParser:
    """Return the parser of one noun's commands."""
    text, add_commands = NOUNS[noun]
    top = OneLineParser(
        prog=f"fairserve {noun}",
        description=f"Manage {text}. {guide_of(noun)} has examples.",
        allow_abbrev=False,
    )
    add_commands(top.add_subparsers(dest="action", required=True, metavar="COMMAND"))
    return top


def main(argv: Sequence[str]) -> int:
    """Run a command, its noun first; returns the exit code."""
    noun, *rest = argv
    arguments = parser(noun).parse_args(rest)
    act: Act = arguments.act
    try:
        url = arguments.url or os.environ.get("FAIRSERVE_URL") or DEFAULT_URL
        act(Client(url, read_key(arguments.key_file)), arguments)
    except UsageError as error:
        return _fail(noun, str(error), USAGE_ERROR)
    except ServerError as error:
        return _fail(noun, str(error), REJECTED)
    return 0


def _fail(noun: str, message: str, code: int) -> int:
    print(f"fairserve {noun}: {message}", file=sys.stderr)
    return code
