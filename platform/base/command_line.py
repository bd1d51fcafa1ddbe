"""Typer apps of the commands: an error is one line with the next step, and help follows the output.

Help is drawn by Rich on a terminal and is plain text elsewhere, with the same groups of flags. A command
fails by raising :class:`CommandError`, and only :func:`run` prints errors.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Context, Option, Typer, TyperException
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from fairserve.platform.base.removed_names import REMOVED_SETTINGS

USAGE_ERROR = 2
FAILED = 1

Function = TypeVar("Function", bound=Callable[..., Any])


class CommandError(TyperException):
    """A command cannot do its work; the message is for people and holds no secret."""

    def __init__(self, message: str, exit_code: int = USAGE_ERROR) -> None:
        """``exit_code`` is that of the process."""
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def _naming(ctx: Context) -> Iterator[None]:
    """Let errors name the command of the context."""
    try:
        yield
    except TyperException as error:
        if getattr(error, "ctx", None) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        flag = getattr(error, "option_name", "")
        name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        if name in REMOVED_SETTINGS:
            removed = CommandError(f"{flag} was removed: {REMOVED_SETTINGS[name]}")
            removed.ctx = ctx  # type: ignore[attr-defined]
            raise removed from error
        raise


class GroupedCommand(TyperCommand):
    """A command whose errors name it, and whose plain help has the groups of flags.

    Typer draws these groups on terminals only.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments into the context."""
        with _naming(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        """Run the function."""
        with _naming(ctx):
            return super().invoke(ctx)

    def format_options(self, ctx: Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments and flags, group by group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None)
                title = title or f"{parameter.param_type_name.capitalize()}s"
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first line of the help, which Typer would cut to ``limit`` characters."""
        return (self.short_help or self.help or "").partition("\n")[0]


class _ForeignCommand(TyperCommand):
    """A function that parses the arguments itself and returns the exit code."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        ctx.args = args
        return args

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        assert self.callback is not None
        return self.callback(ctx.args)


class LazyCommands(TyperGroup):
    """Commands whose functions load the real command, so that only the one that runs is imported.

    A function returns a Typer app, or a function that takes the arguments and returns the exit code.
    """

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return the name, the real command and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or command.callback is None:  # of an unknown name, in completion
            return name, command, rest
        real = command.callback()
        if isinstance(real, Typer):
            return name, get_command(real), rest
        return name, _ForeignCommand(name, callback=real), rest


class CommandGroup(Typer):
    """A Typer app with the conventions of this project."""

    def __init__(self, **options: Any) -> None:
        """``options`` are Typer's."""
        chosen: dict[str, Any] = {
            "add_completion": False,
            "pretty_exceptions_enable": False,
            "rich_markup_mode": "rich" if sys.stdout.isatty() else None,
        }
        super().__init__(**chosen | options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Return a decorator that registers a function as a command; ``options`` are Typer's."""
        return super().command(name, **{"cls": GroupedCommand} | options)


def with_options(*options: Parameter) -> Callable[[Function], Function]:
    """Return a decorator that adds options to a command, which takes them as ``**keywords``."""

    def added(function: Function) -> Function:
        own = inspect.signature(function, eval_str=True)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
        return function

    return added


def taking(options: type) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Return a decorator for a command that takes a dataclass; its fields are annotated as options."""

    def made(function: Callable[[Any], Any]) -> Callable[..., Any]:
        def command(**given: Any) -> Any:
            return function(options(**given))

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
        return command

    return made


def option(name: str, kind: Any, *declarations: str, **settings: Any) -> Parameter:
    """Return an option for :func:`with_options`; its value is None if it is not given."""
    annotation = Annotated[kind | None, Option(*declarations, **settings)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def file_to_write(text: str) -> Path:
    """Return the path of a file in a folder that exists. Raises ValueError."""
    path = Path(text)
    if path.is_dir():
        raise ValueError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"the folder {path.parent} cannot be written to")
    return path


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print columns under their names. Without a terminal, nothing is cut, wrapped or coloured."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 1_000_000
    table = Table(
        *header,
        box=SIMPLE_HEAD if header and console.is_terminal else None,
        show_header=bool(header),
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for row in rows:
        table.add_row(*row)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def run(app: Typer, arguments: Sequence[str], name: str) -> int:
    """Run the command line ``name``; return the exit code. An error is one line on stderr."""
    try:
        result = get_command(app).main(
            list(arguments),
            prog_name=name,
            standalone_mode=False,
            help_option_names=["--help", "-h"],
        )
    except TyperException as error:
        print(_line(error, name), file=sys.stderr)
        return error.exit_code
    return result if isinstance(result, int) else 0


def _line(error: TyperException, name: str) -> str:
    context: Context | None = getattr(error, "ctx", None)
    where = context.command_path if context else name
    if isinstance(error, CommandError):
        return f"{where}: {error.message}"
    close = getattr(error, "possibilities", None)
    text = f"{error.message}; did you mean {close[0]}?" if close else error.format_message()
    text = " ".join(text.split()).replace("Value error, ", "").rstrip(".")
    return f"{where}: {text} (see {where} --help)"
