"""``fairserve db``: the schema of the database, and the replacement of a lost secret key.

Exit codes: 0 done, 2 wrong use or settings, or a database that does not answer or has another schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

from fairserve.platform.base.command_line import (
    USAGE_ERROR,
    CommandError,
    CommandGroup,
    with_options,
)
from fairserve.platform.db import schema
from fairserve.platform.db.engine import session_factory
from fairserve.platform.db.secret_key import SecretKeyError
from fairserve.platform.db.secret_key import replace_secret_key as replace
from fairserve.platform.server.commands.on_database import DATABASE, opened

app = CommandGroup(help="Change the database's schema, or replace a lost secret key.")


@app.command()
@with_options(*DATABASE)
def upgrade(**flags: Any) -> None:
    """Upgrade the schema to this version."""
    with opened(flags, any_schema=True, create=True, silent=USAGE_ERROR) as (_, engine):
        schema.upgrade(engine)
        print(f"schema revision {schema.current_revision(engine)}")


@app.command()
@with_options(*DATABASE)
def downgrade(
    revision: Annotated[str, Argument(metavar="REV", help="A revision number, or base.")],
    **flags: Any,
) -> None:
    """Downgrade the schema to a revision; data of newer tables is lost."""
    with opened(flags, any_schema=True, silent=USAGE_ERROR) as (_, engine):
        schema.downgrade(engine, revision)
        print(f"schema revision {schema.current_revision(engine)}")


@app.command()
@with_options(*DATABASE)
def current(**flags: Any) -> None:
    """Print the schema's revision, and the one that this version needs."""
    with opened(flags, any_schema=True, silent=USAGE_ERROR) as (_, engine):
        now, needed = schema.current_revision(engine), schema.required_revision()
        print(f"schema revision {now}, this version needs {needed}")


@app.command()
@with_options(*DATABASE)
def replace_secret_key(**flags: Any) -> None:
    """Accept a new secret key after the loss of the former one.

    Revokes all API keys that were made with the former one, and prints a new admin key.
    """
    with opened(flags) as (settings, engine):
        try:
            revoked, admin_key = replace(session_factory(engine), settings.db)
        except SecretKeyError as error:
            raise CommandError(str(error)) from error
    print(f"{revoked} API keys are revoked")
    print(f"admin key (shown once, keep it): {admin_key}")
