"""The ``fairserve`` command: finds the subcommand and runs it.

The commands of the product are the Typer apps of :data:`COMMANDS`, each imported only when it runs.
Other packages add commands as entry points of the group ``fairserve.commands``: a name, and a function
that takes the arguments after it and returns the exit code. The first line of its docstring is its help.
It cannot replace a command of the product.

Exit codes: 0 done, 2 wrong use or wrong settings with one line on stderr, 130 interrupted, else the
subcommand's own.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Annotated, Any

from typer import Context, Exit, Option

from fairserve.platform.base.command_line import USAGE_ERROR, CommandGroup, LazyCommands, run
from fairserve.platform.base.version import product_version

GROUP = "fairserve.commands"
"""The entry points of subcommands that other packages bring."""
NEW_OBJECTS_PER_COLLECTION = 10_000
"""New objects between two collections of garbage. With Python's 700 they take 3 % of the event loop,
and a sixth of the imports of a start."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand of the product."""

    text: str
    """Its line in the help."""
    module: str
    """The module of the product whose ``app`` it is."""

    def load(self) -> Any:
        """Import its Typer app."""
        return import_module(f"fairserve.{self.module}").app


COMMANDS: Mapping[str, Subcommand] = MappingProxyType(
    {
        "serve": Subcommand("Run the platform.", "platform.server.commands.serve"),
        "picker": Subcommand(
            "Pick endpoints for a gateway that speaks the endpoint picker protocol.",
            "platform.server.commands.picker",
        ),
        "worker": Subcommand("Run one worker process.", "platform.server.commands.worker"),
        "config": Subcommand(
            "Check and show the settings, from flags, environment and configuration file.",
            "platform.server.commands.config",
        ),
        "db": Subcommand(
            "Upgrade the database's schema, or replace a lost secret key.",
            "platform.server.commands.db",
        ),
        "doctor": Subcommand(
            "Check database, journal, workers, secret key, clocks and limits.",
            "platform.server.commands.doctor",
        ),
        "backup": Subcommand(
            "Back up database, journal and secret key into one archive.",
            "platform.server.commands.backup",
        ),
        "restore": Subcommand(
            "Restore a backup into the data folder of a stopped server.",
            "platform.server.commands.restore",
        ),
        "jobs": Subcommand(
            "Run and inspect background jobs, also as Celery's worker and beat.",
            "platform.server.commands.jobs",
        ),
        "usage": Subcommand(
            "Write usage reports, and check the rollups behind them.",
            "platform.server.commands.usage",
        ),
        "trace": Subcommand(
            "Export recorded traffic as a trace.", "platform.server.commands.trace"
        ),
        "tenant": Subcommand(
            "Manage tenants of a running server.", "platform.server.admin_cli.tenants"
        ),
        "app": Subcommand(
            "Manage apps, with their token profiles and limits.", "platform.server.admin_cli.apps"
        ),
        "key": Subcommand(
            "Make, rotate and revoke API keys of apps and tenants.",
            "platform.server.admin_cli.keys",
        ),
        "price": Subcommand(
            "Set what the tokens of models cost.", "platform.server.admin_cli.prices"
        ),
        "user": Subcommand(
            "Manage end users: weights, limits, blocks, their data.",
            "platform.server.admin_cli.users",
        ),
        "webhook": Subcommand(
            "Manage webhooks, which notify tenants of events.",
            "platform.server.admin_cli.webhooks",
        ),
        "apply": Subcommand(
            "Make tenants, limits, prices, workers and throttling as a file declares them.",
            "platform.server.apply.command",
        ),
        "export": Subcommand(
            "Write tenants, limits, prices, workers and throttling as a file for apply.",
            "platform.server.apply.export_command",
        ),
        "mcp": Subcommand(
            "Serve read-only tools for assistants, from a running server, over MCP.",
            "platform.server.mcp_server.command",
        ),
    }
)


class _Commands(LazyCommands):
    """All subcommands; those of other packages are asked for their texts only when help is shown."""

    def format_help(self, ctx: Context, formatter: Any) -> None:  # type: ignore[override]
        for name, entry in extensions().items():
            self.commands[name].help = _summary(entry)
        super().format_help(ctx, formatter)


def extensions() -> dict[str, EntryPoint]:
    """Return the subcommands that installed packages bring, by name."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {entry.name: entry for entry in found if entry.name not in COMMANDS}


def commands() -> CommandGroup:
    """Return the app of the whole command line; imports no subcommand."""
    app = CommandGroup(cls=_Commands, callback=_top, add_completion=True)
    for name, command in COMMANDS.items():
        app.command(name, help=command.text)(command.load)
    for name, entry in extensions().items():
        app.command(name)(entry.load)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION)
    try:
        return run(commands(), sys.argv[1:] if argv is None else argv, "fairserve")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fairserve"):
            raise
        print(
            f"fairserve: {error.name} is not installed: pip install 'fairserve[server,torch,demo]'",
            file=sys.stderr,
        )
        return USAGE_ERROR


def _summary(entry: EntryPoint) -> str:
    """Return the first line of the docstring of a subcommand's function."""
    try:
        return str((entry.load().__doc__ or entry.value).strip().splitlines()[0])
    except (ImportError, AttributeError) as error:
        return f"Cannot be loaded: {error}."


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fairserve {product_version()}")
        raise Exit


def _top(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Fair, interaction-aware serving of LLM calls for many tenants."""


if __name__ == "__main__":
    sys.exit(main())
