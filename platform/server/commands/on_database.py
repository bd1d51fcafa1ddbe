"""Commands that work on the database itself, beside a running server or without one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from pydantic import ValidationError
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.base.argument_parser import USAGE_ERROR
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.db import schema
from fairserve.platform.db.engine import connect
from fairserve.platform.server.settings import Settings
from fairserve.platform.server.settings_flags import settings_from

FAILED = 1
"""The exit code if the database or a file is not available."""

Act = Callable[[argparse.Namespace, Settings, Engine], int]

_SETTINGS = ("database_url", "data_dir", "redis_url")


def add_database_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the database."""
    parser.add_argument(
        "--database-url",
        help="the database. Default: that of `fairserve serve`. "
        "Environment: FAIRSERVE_DATABASE_URL, DATABASE_URL.",
    )
    parser.add_argument("--data-dir", help="folder of the embedded database.")


def database_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the environment, with those that the flags give. Raises ValueError."""
    given = {
        name: value for name in _SETTINGS if (value := getattr(arguments, name, None)) is not None
    }
    return settings_from(argparse.Namespace(**given))


def on_database(command: str, arguments: argparse.Namespace, act: Act) -> int:
    """Act on a database of this version's schema; returns the exit code.

    An error is printed in one line on stderr.
    """
    try:
        settings = database_settings(arguments)
        engine = connect(settings.db.effective_database_url, create=False)
        try:
            schema.check(engine, accept_newer=True)
            return act(arguments, settings, engine)
        finally:
            engine.dispose()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:1]) or command.split()[-1]
        message = str(first["msg"]).removeprefix("Value error, ")
        return fail(command, f"{where}: {message}", USAGE_ERROR)
    except (ValueError, schema.SchemaError) as error:
        return fail(command, str(error), USAGE_ERROR)
    except FairServeError as error:
        return fail(command, error.message, USAGE_ERROR)
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split())
        return fail(command, f"the database does not answer: {text}", FAILED)
    except OSError as error:
        return fail(command, str(error), FAILED)


def fail(command: str, message: str, code: int = FAILED) -> int:
    """Print why a command failed; returns the exit code."""
    print(f"{command}: {message}", file=sys.stderr)
    return code
