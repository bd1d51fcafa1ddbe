"""Data folders for servers with a migrated database: copies of one file."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from fairserve.platform.db.engine import connect
from fairserve.platform.db.schema import upgrade

NAME = "fairserve.sqlite3"


@functools.cache
def _migrated():
    """Return a database with the schema of this version, made once per test process."""
    folder = Path(tempfile.mkdtemp(prefix="fairserve-migrated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    engine = connect(f"sqlite:///{folder / NAME}")
    upgrade(engine)
    engine.dispose()  # the last connection moves the write-ahead log into the file
    return folder / NAME


def new_data_dir(path):
    """Make a data folder with a migrated database; return its path."""
    path.mkdir(parents=True, mode=0o700)
    shutil.copyfile(_migrated(), path / NAME)
    return path
