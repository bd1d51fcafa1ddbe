"""``fairserve restore``: a backup becomes the data of a stopped server.

Exit codes: 0 done, 1 a file is not accessible, 2 wrong use, settings or archive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, with_options
from fairserve.platform.server.configuration.flags import flag_options
from fairserve.platform.server.configuration.sources import SettingsError, settings_from

app = CommandGroup()


@app.command()
@with_options(*flag_options("database_url", "data_dir", "config"))
def restore(
    file: Annotated[Path, Argument(metavar="FILE", help="The archive of `fairserve backup`.")],
    force: Annotated[
        bool,
        Option("--force", help="Replace the content of the data folder, which is moved aside."),
    ] = False,
    **flags: Any,
) -> None:
    """Restore a backup into the data folder of a stopped server.

    The archive is verified before anything changes. For PostgreSQL, run pg_restore first.
    """
    from fairserve.platform.db import schema
    from fairserve.platform.server.backup.archive import ArchiveError
    from fairserve.platform.server.backup.restore import has_key_file, restore
    from fairserve.platform.server.locks import LockTakenError

    try:
        settings = settings_from(flags).db
        done = restore(file, settings, force=force)
    except (SettingsError, ArchiveError, LockTakenError, ValueError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(str(error), FAILED) from error
    manifest = done.manifest
    print(f"{settings.data_dir}: restored the backup of {manifest.created_at}")
    if done.replaced is not None:
        print(f"the former content is in {done.replaced}; delete it when it is no longer needed")
    if manifest.schema_revision < schema.required_revision():
        print(f"run `{schema.UPGRADE_COMMAND}` before the start: the backup has an older schema")
    if settings.secret_key is None and not has_key_file(settings.data_dir):
        print("set FAIRSERVE_SECRET_KEY to the key of the former server before the start")
