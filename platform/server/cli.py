"""The ``fairserve`` command. Each subcommand imports what it needs only when it runs.

Exit codes: 0 done, 2 wrong use or wrong settings with one line on stderr, else what the subcommand
says. The flags of ``serve`` are the settings (:mod:`fairserve.platform.server.settings_flags`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from fairserve.platform.server.settings import Settings


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    from fairserve.platform.server.settings_flags import add_flags

    top = OneLineParser(
        prog="fairserve",
        description="Fair, interaction-aware serving of LLM calls for many tenants.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"fairserve {_version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run the platform",
        description="Run the API, control and, unless external workers are named by --worker-urls, "
        "--fleet-file or the admin API, embedded workers.",
        epilog="Secrets have no flag: FAIRSERVE_SECRET_KEY, FAIRSERVE_SECRET_KEY_PREVIOUS, "
        "FAIRSERVE_ADMIN_KEY.",
        usage="%(prog)s [--FLAG VALUE ...]",
        allow_abbrev=False,
    )
    add_flags(serve)
    serve.set_defaults(run=_serve)

    for name, text in (
        ("worker", "run one worker process"),
        ("demo", "run three agent apps against several systems, and compare"),
        ("bench", "measure what the platform itself costs"),
        ("simulate", "replay a trace in virtual time and compare systems"),
        ("trace", "export recorded traffic as a trace"),
        ("usage", "usage reports, and the rollups that they are made of"),
        ("jobs", "background jobs: Celery's worker and beat, and how the jobs fare"),
        ("reproduce", "tables and figures of the papers, published beside measured"),
        ("tenant", "manage tenants of a running server: who pays"),
        ("app", "manage apps, with their token profiles and limits"),
        ("key", "make, rotate and revoke API keys of apps and tenants"),
        ("price", "set what the tokens of models cost"),
        ("user", "manage end users: weights, limits, blocks, their data"),
        ("webhook", "manage webhooks: where tenants are told of events"),
    ):
        # These parse their own arguments, --help included.
        commands.add_parser(name, help=text, add_help=False)

    database = commands.add_parser(
        "db", help="upgrade the database's schema, or replace a lost secret key", allow_abbrev=False
    )
    actions = database.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, run in (
        ("upgrade", "bring the schema to this version", _upgrade),
        (
            "downgrade",
            "take the schema back to a revision; data of newer tables is lost",
            _downgrade,
        ),
        ("current", "print the schema's revision, and the one that this version needs", _current),
        (
            "replace-secret-key",
            "accept a new secret key after the loss of the former one: revokes all API keys that"
            " were made with that, and prints a new admin key",
            _replace_secret_key,
        ),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument(
            "--database-url",
            help="the database. Default: that of `fairserve serve`. "
            "Environment: FAIRSERVE_DATABASE_URL, DATABASE_URL.",
        )
        action.add_argument("--data-dir", help="folder of the embedded database.")
        if name == "downgrade":
            action.add_argument("revision", metavar="REV", help="a revision number, or base")
        action.set_defaults(run=run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["worker"]:
            from fairserve.engine.worker import main as worker

            return _code(worker(arguments[1:]))
        if arguments[:1] == ["demo"]:
            from fairserve.benchmarks.demo.main import main as demo

            return _code(demo(arguments[1:]))
        if arguments[:1] == ["bench"]:
            from fairserve.benchmarks.bench.main import main as bench

            return _code(bench(arguments[1:]))
        if arguments[:1] == ["simulate"]:
            from fairserve.benchmarks.simulate.command import main as simulate

            return _code(simulate(arguments[1:]))
        if arguments[:1] == ["trace"]:
            from fairserve.platform.server.commands.trace import main as trace

            return _code(trace(arguments[1:]))
        if arguments[:1] == ["usage"]:
            from fairserve.platform.server.commands.usage import main as usage

            return _code(usage(arguments[1:]))
        if arguments[:1] == ["jobs"]:
            from fairserve.platform.server.commands.jobs import main as jobs

            return _code(jobs(arguments[1:]))
        if arguments[:1] == ["reproduce"]:
            from fairserve.benchmarks.reproduce.main import main as reproduce

            return _code(reproduce(arguments[1:]))
        if arguments[:1] and arguments[0] in ("tenant", "app", "key", "price", "user", "webhook"):
            from fairserve.platform.server.admin_cli.main import main as admin

            return _code(admin(arguments))
        parsed = parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fairserve"):
            raise
        return _fail(f"{error.name} is not installed: pip install 'fairserve[server,torch,demo]'")
    except KeyboardInterrupt:
        return 130


def _serve(arguments: argparse.Namespace) -> int:
    from fairserve.platform.server.settings_flags import settings_from
    from fairserve.platform.tuning.parameters import configured_system

    try:
        settings = settings_from(arguments)
        configured_system(settings.tuning)
    except ValueError as error:
        return _fail(str(error))
    from fairserve.platform.db.schema import SchemaError
    from fairserve.platform.server.wiring import serve

    try:
        return serve(settings)
    except SchemaError as error:
        return _fail(str(error))


def _database(
    arguments: argparse.Namespace, action: Callable[..., object], *, create: bool = False
) -> int:
    from sqlalchemy.exc import SQLAlchemyError

    from fairserve.platform.db.engine import connect
    from fairserve.platform.db.schema import SchemaError
    from fairserve.platform.server.settings_flags import settings_from

    given = {
        name: value
        for name in ("database_url", "data_dir")
        if (value := getattr(arguments, name)) is not None
    }
    try:
        settings = settings_from(argparse.Namespace(**given))
        engine = connect(settings.db.effective_database_url, create=create)
        try:
            action(engine)
        finally:
            engine.dispose()
    except (ValueError, OSError, SchemaError) as error:
        return _fail(str(error))
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        return _fail(f"the database does not answer: {' '.join(str(cause).split())}")
    return 0


def _upgrade(arguments: argparse.Namespace) -> int:
    from fairserve.platform.db import schema

    def act(engine: Engine) -> None:
        schema.upgrade(engine)
        print(f"schema revision {schema.current_revision(engine)}")

    return _database(arguments, act, create=True)


def _downgrade(arguments: argparse.Namespace) -> int:
    from fairserve.platform.db import schema

    def act(engine: Engine) -> None:
        schema.downgrade(engine, arguments.revision)
        print(f"schema revision {schema.current_revision(engine)}")

    return _database(arguments, act)


def _current(arguments: argparse.Namespace) -> int:
    from fairserve.platform.db import schema

    def act(engine: Engine) -> None:
        print(
            f"schema revision {schema.current_revision(engine)}, this version needs"
            f" {schema.required_revision()}"
        )

    return _database(arguments, act)


def _replace_secret_key(arguments: argparse.Namespace) -> int:
    from fairserve.platform.db.engine import session_factory
    from fairserve.platform.db.secret_key import SecretKeyError, replace_secret_key
    from fairserve.platform.server.commands.database import fail, on_database

    command = "fairserve db replace-secret-key"

    def act(_: argparse.Namespace, settings: Settings, engine: Engine) -> int:
        try:
            revoked, admin_key = replace_secret_key(session_factory(engine), settings.db)
        except SecretKeyError as error:
            return fail(command, str(error), USAGE_ERROR)
        print(f"{revoked} API keys are revoked")
        print(f"admin key (shown once, keep it): {admin_key}")
        return 0

    return on_database(command, arguments, act)


def _fail(message: str) -> int:
    print(f"fairserve: {message}", file=sys.stderr)
    return USAGE_ERROR


def _code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _version() -> str:
    try:
        return version("fairserve")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
