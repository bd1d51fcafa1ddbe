"""``fairserve db``: the schema of the database, and the replacement of a lost secret key.

Exit codes: 0 done, 2 wrong use or settings, or a database that does not answer or has another schema.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser
from fairserve.platform.db import schema
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.secret_key import SecretKeyError, replace_secret_key
from fairserve.platform.server.commands.on_database import (
    add_database_flags,
    database_settings,
    fail,
    on_database,
)
from fairserve.platform.server.settings import Settings

_COMMAND = "fairserve db"


def main(argv: Sequence[str]) -> int:
    """Run one action; returns the exit code."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _upgrade(arguments: argparse.Namespace) -> int:
    def act(engine: Engine) -> None:
        schema.upgrade(engine)
        print(f"schema revision {schema.current_revision(engine)}")

    return _on_schema(arguments, act, create=True)


def _downgrade(arguments: argparse.Namespace) -> int:
    def act(engine: Engine) -> None:
        schema.downgrade(engine, arguments.revision)
        print(f"schema revision {schema.current_revision(engine)}")

    return _on_schema(arguments, act)


def _current(arguments: argparse.Namespace) -> int:
    def act(engine: Engine) -> None:
        print(
            f"schema revision {schema.current_revision(engine)}, this version needs"
            f" {schema.required_revision()}"
        )

    return _on_schema(arguments, act)


def _on_schema(
    arguments: argparse.Namespace, act: Callable[[Engine], None], *, create: bool = False
) -> int:
    """Act on a database of any schema; returns the exit code."""
    try:
        engine = connect(database_settings(arguments).db.effective_database_url, create=create)
        try:
            act(engine)
        finally:
            engine.dispose()
    except (ValueError, OSError, schema.SchemaError) as error:
        return _fail(str(error))
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        return _fail(f"the database does not answer: {' '.join(str(cause).split())}")
    return 0


def _replace_secret_key(arguments: argparse.Namespace) -> int:
    command = f"{_COMMAND} replace-secret-key"

    def act(_: argparse.Namespace, settings: Settings, engine: Engine) -> int:
        try:
            revoked, admin_key = replace_secret_key(session_factory(engine), settings.db)
        except SecretKeyError as error:
            return fail(command, str(error), USAGE_ERROR)
        print(f"{revoked} API keys are revoked")
        print(f"admin key (shown once, keep it): {admin_key}")
        return 0

    return on_database(command, arguments, act)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=_COMMAND,
        description="Change the database's schema, or replace a lost secret key.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, run in (
        ("upgrade", "upgrade the schema to this version", _upgrade),
        (
            "downgrade",
            "downgrade the schema to a revision; data of newer tables is lost",
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
        add_database_flags(action)
        if name == "downgrade":
            action.add_argument("revision", metavar="REV", help="a revision number, or base")
        action.set_defaults(run=run)
    return parser


def _fail(message: str) -> int:
    print(f"fairserve: {message}", file=sys.stderr)
    return USAGE_ERROR
