"""Files with prompts are readable by their owner only, whatever the folder's mode is."""

import os
import stat

import pytest
from sqlalchemy import text

from fairserve.platform.db.engine import connect, database_files, session_factory
from fairserve.platform.serving.files.store import open_store


@pytest.fixture
def folder(tmp_path):
    """A folder that everybody can enter, and the usual umask."""
    before = os.umask(0o022)
    tmp_path.chmod(0o755)
    yield tmp_path
    os.umask(before)


def modes(path):
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in database_files(path)}


def write(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS prompts (text)"))
        connection.execute(text("INSERT INTO prompts VALUES ('secret')"))


def test_new_files_are_private(folder):
    path = folder / "x.sqlite3"
    engine = connect(f"sqlite:///{path}")
    write(engine)
    assert modes(path) == dict.fromkeys(("x.sqlite3", "x.sqlite3-wal", "x.sqlite3-shm"), 0o600)
    engine.dispose()


def test_files_of_an_earlier_version_become_private(folder):
    path = folder / "x.sqlite3"
    engine = connect(f"sqlite:///{path}")
    write(engine)
    for file in database_files(path):
        file.chmod(0o644)
    connect(f"sqlite:///{path}", create=False).dispose()
    assert set(modes(path).values()) == {0o644}, "a look changes nothing"
    connect(f"sqlite:///{path}").dispose()
    assert modes(path) == dict.fromkeys(("x.sqlite3", "x.sqlite3-wal", "x.sqlite3-shm"), 0o600)
    engine.dispose()


def test_batch_files_in_a_local_folder_are_private(folder):
    engine = connect(f"sqlite:///{folder / 'x.sqlite3'}")
    store = open_store(f"file://{folder}/files", session_factory(engine))
    writer = store.writer("file_1")
    writer.write(b"secret")
    writer.close()
    assert b"".join(store.read("file_1")) == b"secret"
    assert stat.S_IMODE((folder / "files" / "file_1").stat().st_mode) == 0o600
    engine.dispose()
