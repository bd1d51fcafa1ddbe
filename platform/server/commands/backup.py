"""``fairserve backup``: one archive of all data, made while the server runs.

Exit codes: 0 done, 1 the database or a file is not accessible, 2 wrong use or settings.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, with_options
from fairserve.platform.server.commands.on_database import DATABASE

app = CommandGroup()


@app.command()
@with_options(*DATABASE)
def backup(
    file: Annotated[Path, Argument(metavar="FILE", help="The archive, such as backup.tar.gz.")],
    force: Annotated[bool, Option("--force", help="Replace an existing file.")] = False,
    without_database: Annotated[
        bool,
        Option(
            "--without-database",
            help="Leave out the database, which pg_dump has dumped before this command.",
        ),
    ] = False,
    dump: Annotated[
        str,
        Option(
            metavar="COMMAND",
            help="Shell command that dumps the database itself, such as pg_dump; $DATABASE_URL is the"
            " URL of the settings. It runs while the journal is held, so that dump and archive fit.",
        ),
    ] = "",
    **flags: Any,
) -> None:
    """Back up database, journal, secret key and other files into one archive.

    Works beside a running server. The archive has secrets and is readable for its owner only.
    Recorded traffic is not in it.
    """
    from fairserve.platform.db.secret_key import SecretKeyError
    from fairserve.platform.server.backup.archive import ArchiveError
    from fairserve.platform.server.backup.backup import Options, back_up
    from fairserve.platform.server.commands.on_database import opened

    if not file.parent.is_dir():
        raise CommandError(f"there is no folder {file.parent}")
    options = Options(force=force, without_database=without_database, dump_command=dump)
    with opened(flags) as (settings, engine):
        try:
            manifest = back_up(file, settings.db, engine, options)
        except (ArchiveError, SecretKeyError) as error:
            raise CommandError(str(error)) from error
        except sqlite3.Error as error:
            raise CommandError(f"the database cannot be copied: {error}", FAILED) from error
    size = sum(entry.bytes for entry in manifest.files.values())
    print(f"{file}: {len(manifest.files)} files, {size:,} bytes, schema {manifest.schema_revision}")
    if settings.db.secret_key is not None:
        print("the secret key is a setting and not in the archive: keep it, too")
