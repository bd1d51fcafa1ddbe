"""Commands that work on the database itself, beside a running server or without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.base.validation import text_of
from fairserve.platform.db import schema
from fairserve.platform.db.engine import connect
from fairserve.platform.db.schemas import FieldError
from fairserve.platform.server.configuration.flags import flag_options
from fairserve.platform.server.configuration.sources import settings_from
from fairserve.platform.server.settings import Settings

DATABASE = flag_options("database_url", "data_dir", "config")
"""The flags that name the database, and the configuration file that may."""


@contextmanager
def opened(
    flags: dict[str, Any], *, any_schema: bool = False, create: bool = False, silent: int = FAILED
) -> Iterator[tuple[Settings, Engine]]:
    """Open the database of these flags and the environment, which must have this version's schema.

    Raises CommandError, also for what goes wrong inside, with the exit code ``silent`` if the database
    or a file is not available.
    """
    try:
        settings = settings_from(flags)
        engine = connect(settings.db.effective_database_url, create=create)
        try:
            if not any_schema:
                schema.check(engine, accept_newer=True)
            yield settings, engine
        finally:
            engine.dispose()
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        field = cause.field if isinstance(cause, FieldError) else next(iter(first["loc"]), None)
        raise CommandError(_flag(field) + text_of(first)) from error
    except (ValueError, schema.SchemaError) as error:
        raise CommandError(str(error)) from error
    except FairServeError as error:
        raise CommandError(_flag(error.param) + error.message) from error
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split())
        raise CommandError(f"the database does not answer: {text}", silent) from error
    except OSError as error:
        raise CommandError(str(error), silent) from error


def _flag(field: str | int | None) -> str:
    """Return the beginning of an error about a field, of a report's query, whose fields are flags."""
    return "" if field is None else f"--{field}: ".replace("_", "-")
