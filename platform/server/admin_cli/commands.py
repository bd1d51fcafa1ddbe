"""Commands against a running server: the flags that they share, and their output.

Exit codes: 0 done; 1 the server rejected the request or does not answer, with a message on stderr; 2
wrong use.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from fairserve.platform.base.command_line import CommandError, CommandGroup, option, with_options
from fairserve.platform.server.admin_cli.client import (
    DEFAULT_URL,
    AdminClient,
    RejectedRequestError,
    read_key,
)
from fairserve.platform.server.admin_cli.flag_errors import flags_of, in_flags
from fairserve.platform.server.admin_cli.names import tenant_of
from fairserve.platform.server.admin_cli.output import print_json, print_one, print_page

Act = Callable[..., Any]
Id = Annotated[str, Argument(metavar="NAME", help="Its name or id.")]

CONNECTION = [
    option(
        "url",
        str,
        envvar="FAIRSERVE_URL",
        metavar="URL",
        help=f"URL of the server; default: {DEFAULT_URL}.",
        rich_help_panel="Server",
    ),
    option(
        "key_file",
        Path,
        metavar="FILE",
        help="File with the API key; default: FAIRSERVE_API_KEY of the environment. A key has no flag,"
        " because a process list shows flags.",
        rich_help_panel="Server",
    ),
]
"""The flags that choose the server and the key."""
_JSON = option(
    "as_json",
    bool,
    "--json",
    help="Print the answer of the server as it is.",
    rich_help_panel="Server",
)
_TENANTS = {"tenant", "tenant_id"}
"""Parameters of commands that name a tenant."""
_PAGE = [
    option("limit", int, metavar="N", help="Rows at most."),
    option("offset", int, metavar="N", help="Rows to skip."),
]


def command(
    app: CommandGroup, *options: Parameter, name: str | None = None, columns: Sequence[str] = ()
) -> Callable[[Act], Act]:
    """Return a decorator that registers a function as a command.

    The function takes the client of the server first, then its arguments and ``options``, which are None
    if they are not given. It returns the answer, which is printed; a list as a table of ``columns``.
    """

    def registered(act: Act) -> Act:
        own = (*options, *(_PAGE if columns else ()))
        flags = flags_of(act, own)
        act = with_options(*own, *CONNECTION, _JSON)(act)

        @wraps(act)
        def run(*, url: str | None, key_file: Path | None, as_json: bool, **given: Any) -> None:
            client = client_of(url, key_file)
            try:
                for each in _TENANTS & given.keys():
                    given[each] = given[each] and tenant_of(client, given[each])
                answer = act(client, **given)
            except RejectedRequestError as error:
                raise in_flags(error, flags) from None
            if answer is None:
                return
            if as_json:
                print_json(answer)
            elif columns and "items" in answer:
                print_page(answer, columns)
            else:
                print_one(answer)

        signature = inspect.signature(act)
        _, *parameters = signature.parameters.values()
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return app.command(name)(run)

    return registered


def client_of(url: str | None, key_file: Path | None) -> AdminClient:
    """Return the client of the server that the flags choose. Raises CommandError."""
    return AdminClient(url or DEFAULT_URL, read_key(key_file))


def changes(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body that is not empty. Raises CommandError for an empty one."""
    if not body:
        raise CommandError("nothing to change: name a flag (--help lists them)")
    return body


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises CommandError."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from None
