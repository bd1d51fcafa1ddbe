"""The ``fairserve`` command: finds the subcommand and hands it the arguments.

A subcommand is a function ``main(argv)`` that parses its own arguments and is imported only when it
runs. Those of the product are listed here. Other packages add theirs as entry points of the group
``fairserve.commands``: a name, and a function that takes the arguments after it and returns the exit
code. The first line of its docstring is its help. It cannot replace a command of the product.

Exit codes: 0 done, 2 wrong use or wrong settings with one line on stderr, else the subcommand's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import MappingProxyType

from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser

GROUP = "fairserve.commands"
"""The entry points of subcommands that other packages bring."""
_ADMIN = "fairserve.platform.server.admin_cli.main"


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand of the product."""

    text: str
    """Its line in the help."""
    module: str
    """The module whose ``main`` runs it."""
    takes_name: bool = False
    """``main`` serves several subcommands and gets the name before the other arguments."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "serve": Command("run the platform", "fairserve.platform.server.commands.serve"),
        "worker": Command("run one worker process", "fairserve.engine.worker"),
        "db": Command(
            "upgrade the database's schema, or replace a lost secret key",
            "fairserve.platform.server.commands.db",
        ),
        "jobs": Command(
            "run and inspect background jobs, also as Celery's worker and beat",
            "fairserve.platform.server.commands.jobs",
        ),
        "usage": Command(
            "write usage reports, and check the rollups behind them",
            "fairserve.platform.server.commands.usage",
        ),
        "trace": Command(
            "export recorded traffic as a trace", "fairserve.platform.server.commands.trace"
        ),
        "tenant": Command("manage tenants of a running server", _ADMIN, takes_name=True),
        "app": Command(
            "manage apps, with their token profiles and limits", _ADMIN, takes_name=True
        ),
        "key": Command(
            "make, rotate and revoke API keys of apps and tenants", _ADMIN, takes_name=True
        ),
        "price": Command("set what the tokens of models cost", _ADMIN, takes_name=True),
        "user": Command(
            "manage end users: weights, limits, blocks, their data", _ADMIN, takes_name=True
        ),
        "webhook": Command(
            "manage webhooks, which notify tenants of events", _ADMIN, takes_name=True
        ),
    }
)


def extensions() -> dict[str, EntryPoint]:
    """Return the subcommands that installed packages bring, by name."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {entry.name: entry for entry in found if entry.name not in COMMANDS}


def parser() -> argparse.ArgumentParser:
    """Return the parser of what comes before a subcommand's own arguments."""
    top = OneLineParser(
        prog="fairserve",
        description="Fair, interaction-aware serving of LLM calls for many tenants.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"fairserve {_version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    texts = {name: command.text for name, command in COMMANDS.items()}
    texts |= {name: _summary(entry) for name, entry in extensions().items()}
    for name, text in texts.items():
        commands.add_parser(name, help=text.replace("%", "%%"), add_help=False)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        run = _function(arguments[0]) if arguments else None
        if run is None:
            top = parser()
            top.parse_args(arguments)
            top.error("the name of a command comes first")
        result = run(arguments[1:])
        return result if isinstance(result, int) else 0
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fairserve"):
            raise
        print(
            f"fairserve: {error.name} is not installed: pip install 'fairserve[server,torch,demo]'",
            file=sys.stderr,
        )
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130


def _function(name: str) -> Callable[[list[str]], object] | None:
    """Import the function of a subcommand; None if there is no such subcommand."""
    command = COMMANDS.get(name)
    if command is None:
        entry = extensions().get(name)
        loaded: Callable[[list[str]], object] | None = None if entry is None else entry.load()
        return loaded
    run: Callable[[list[str]], object] = import_module(command.module).main
    return (lambda rest: run([name, *rest])) if command.takes_name else run


def _summary(entry: EntryPoint) -> str:
    """Return the first line of the docstring of a subcommand's function, as it looks in the help."""
    try:
        line = (entry.load().__doc__ or entry.value).strip().splitlines()[0]
    except ImportError as error:
        return f"cannot be loaded: {error}"
    return str(line[:1].lower() + line[1:].rstrip("."))


def _version() -> str:
    try:
        return version("fairserve")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
