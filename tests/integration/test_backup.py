"""A backup of a live server has every call that was accepted before it, exactly once."""

import io
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import tarfile
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from constants import defaults
from databases import ON_POSTGRESQL
from processes import eventually
from whole_server import WholeServer

from fairserve.platform.db import schema
from fairserve.platform.server import cli, wiring
from fairserve.platform.server.backup import backup as backups
from fairserve.platform.server.backup import restore as restores
from fairserve.platform.server.locks import held_lock

COLUMNS = "call_id, outcome, input_tokens, output_tokens, accepted_at, ended_at, user_id"


@pytest.fixture
def command(capsys):
    """Return a function that runs a command and returns its exit code, output and error."""

    def run(*arguments):
        code = cli.main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def sqlite_rows(folder):
    with closing(sqlite3.connect(folder / "fairserve.sqlite3")) as connection:
        return connection.execute(f"SELECT {COLUMNS} FROM ledger_calls ORDER BY call_id").fetchall()


def segments(folder):
    return sorted(path.name for path in (folder / "journal").glob("journal-*.jsonl"))


def call_and_wait(server, key, count):
    """Make calls; return once the ledger has them, and the journal keeps only what it must."""
    for _ in range(count):
        server.chat(key, "ok")
    assert server.platform.ledger.flush(30)


def held_call(server, key):
    """Start a call that is in progress until the worker releases it; return its thread."""
    begun = len(server.worker.request_ids)
    call = threading.Thread(target=server.chat, args=(key, "hold"))
    call.start()
    eventually(lambda: server.worker.request_ids[begun:], "the call does not reach the worker")
    return call


def test_a_backup_of_a_live_server_loses_and_doubles_no_call(tmp_path, command, monkeypatch):
    live, copy, archive = tmp_path / "live", tmp_path / "copy", tmp_path / "backup.tar.gz"
    calls = []

    def copy_database(source, target):
        """Copy, while calls go on: in the first round so many that segments are deleted."""
        if not calls:
            real_copy(source, target)
            call_and_wait(server, key, 20)
        else:
            server.worker.release()  # open in the journal so far, and finished in the copy
            calls[0].join()
            call_and_wait(server, key, 1)
            real_copy(source, target)
            call_and_wait(server, key, 1)  # only in the journal
        calls.append(held_call(server, key))

    real_copy = backups.copy_database
    monkeypatch.setattr(backups, "copy_database", copy_database)
    # Segments of a few calls, so that many are deleted.
    with defaults(wiring, "Journal", segment_bytes=4096), WholeServer(live) as server:
        key = server.new_tenant_and_app("acme")[1]["api_key"]
        call_and_wait(server, key, 3)
        assert command("backup", archive, "--data-dir", live)[0] == 0
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        before = {row[0]: row for row in sqlite_rows(live)}
        server.worker.release()
        calls[-1].join()
    assert (len(calls), len(before)) == (2, 26), "one round has to be repeated"
    assert not list(live.glob(".backup-*"))

    code, out, _ = command("restore", archive, "--data-dir", copy)
    assert (code, out.count("\n")) == (0, 1)
    with WholeServer(copy) as server:
        assert server.platform.ledger.flush(30)
        after = {row[0]: row for row in sqlite_rows(copy)}
        assert {name: row for name, row in after.items() if row[1] == "completed"} == before
        assert [row[1] for name, row in after.items() if name not in before] == ["failed"]
        server.chat(key, "ok")
        assert server.admin_key is None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with the data of a server that has stopped, and the archive of it."""
    folder = tmp_path_factory.mktemp("made")
    with WholeServer(folder / "data") as server:
        call_and_wait(server, server.new_tenant_and_app("acme")[1]["api_key"], 1)
    (folder / "data" / "batches").mkdir()
    (folder / "data" / "batches" / "one.jsonl").write_text("{}\n")
    assert (
        cli.main(["backup", str(folder / "backup.tar.gz"), "--data-dir", str(folder / "data")]) == 0
    )
    return folder


@pytest.fixture
def archive(made, tmp_path):
    """Return a copy of the archive, beside a copy of the data folder."""
    shutil.copytree(made / "data", tmp_path / "data")
    return Path(shutil.copy(made / "backup.tar.gz", tmp_path))


def test_the_archive_has_all_files_and_no_locks(archive, tmp_path, command):
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert {"fairserve.sqlite3", "secret.key", "batches/one.jsonl"} < set(names)
    assert names[-1] == "manifest.json"
    assert not [name for name in names if "lock" in name or "recording" in name]
    code, _, err = command("backup", archive, "--data-dir", tmp_path / "data")
    assert code == 2
    assert "exists; choose another name, or replace it with --force" in err
    assert command("backup", archive, "--data-dir", tmp_path / "data", "--force")[0] == 0
    code, _, err = command("backup", tmp_path / "data" / "x", "--data-dir", tmp_path / "data")
    assert "is in the data folder" in err
    assert command("restore", archive, "--data-dir", tmp_path / "copy")[0] == 0
    assert (tmp_path / "copy" / "batches" / "one.jsonl").read_text() == "{}\n"
    assert stat.S_IMODE((tmp_path / "copy" / "secret.key").stat().st_mode) == 0o600


def test_a_restore_replaces_a_folder_only_with_force(archive, tmp_path, command):
    target = tmp_path / "data"
    (target / "mine").write_text("x")
    code, _, err = command("restore", archive, "--data-dir", target)
    assert code == 2
    assert "is not empty" in err
    code, out, _ = command("restore", archive, "--data-dir", target, "--force")
    assert (code, out.count("\n")) == (0, 2)
    (replaced,) = target.glob("replaced-*")
    assert (replaced / "mine").read_text() == "x"
    assert not (target / "mine").exists()
    assert sqlite_rows(target) == sqlite_rows(replaced)
    with held_lock(target / "serve.lock", "data folder"):
        code, _, err = command("restore", archive, "--data-dir", target, "--force")
    assert code == 2
    assert "is in use by another FairServe server" in err


def entries(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


def damaged(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    """Leave out the manifest."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    rewrite(path, members[:-1])


def altered(path):
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    changed = [(m, b"y" * m.size if m.name == "secret.key" else data) for m, data in members]
    rewrite(path, changed)


def climbing(path):
    member = tarfile.TarInfo("../outside")
    rewrite(path, [(member, b"")])


def rewrite(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damaged, "damaged|is not complete"),
        (cut, "is not complete"),
        (altered, "has damaged secret.key"),
        (climbing, "cannot be in a backup"),
        (lambda path: path.write_text("x"), "is no backup"),
    ],
)
def test_a_bad_archive_changes_nothing(archive, tmp_path, command, damage, reason):
    damage(archive)
    code, _, err = command("restore", archive, "--data-dir", tmp_path / "copy")
    assert code == 2
    assert re.search(reason, err)
    assert not (tmp_path / "copy").exists()
    before = entries(tmp_path / "data")
    assert command("restore", archive, "--data-dir", tmp_path / "data", "--force")[0] == 2
    assert entries(tmp_path / "data") == before


def test_a_backup_of_an_unsuitable_version_or_another_key_is_rejected(
    archive, tmp_path, command, monkeypatch
):
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "x" * 40)
    code, _, err = command("restore", archive, "--data-dir", tmp_path / "copy")
    assert code == 2
    assert "is not the key of the backup" in err
    monkeypatch.delenv("FAIRSERVE_SECRET_KEY")
    for known, reason in (
        (1, "this version knows up to 1: install FairServe"),
        (9999, "of a version before the first release, and cannot be upgraded"),
    ):
        monkeypatch.setattr(schema, "revisions", lambda known=known: [known])
        code, _, err = command("restore", archive, "--data-dir", tmp_path / "copy")
        assert code == 2
        assert reason in err


def test_a_server_does_not_start_on_an_interrupted_restore(archive, tmp_path, command, monkeypatch):
    target = tmp_path / "copy"
    with monkeypatch.context() as patch:
        patch.setattr(restores.Path, "rmdir", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            command("restore", archive, "--data-dir", target)
    code, _, err = command("serve", "--data-dir", target, "--port", "0")
    assert code == 1
    assert "was interrupted: run `fairserve restore` again with --force" in err
    assert command("restore", archive, "--data-dir", target, "--force")[0] == 0
    assert not (target / restores.INCOMPLETE).exists()
    assert len(sqlite_rows(target)) == 1


@ON_POSTGRESQL
def test_postgresql_is_backed_up_with_pg_dump(
    postgres_server, new_postgres_url, database, tmp_path, command, monkeypatch
):
    """The commands are those of the guide."""
    live, copy, archive = tmp_path / "live", tmp_path / "copy", tmp_path / "backup.tar.gz"
    url, empty = new_postgres_url(), f"{postgres_server}/restored"
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE restored")
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "k" * 40)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    config = tmp_path / "fairserve.yaml"
    config.write_text(f"database_url: {url}\ndata_dir: {live}\n")
    dump = f'pg_dump --format=custom --file={tmp_path / "database.dump"} "$DATABASE_URL"'
    with WholeServer(live, database_url=url, secret_key="k" * 40) as server:
        key = server.new_tenant_and_app("acme")[1]["api_key"]
        call_and_wait(server, key, 3)
        code, _, err = command("backup", archive, "--config", config)
        assert code == 2
        assert "pg_dump" in err
        code, out, err = command("backup", archive, "--config", config, "--dump", dump)
        assert (code, err) == (0, "")
        assert "the secret key is a setting" in out
        assert (
            "failed with status 3"
            in command("backup", archive, "--force", "--config", config, "--dump", "exit 3")[2]
        )
    subprocess.run(
        [
            "pg_restore",
            "--exit-on-error",
            "--no-owner",
            f"--dbname={empty}",
            tmp_path / "database.dump",
        ],
        check=True,
    )
    monkeypatch.setenv("DATABASE_URL", empty)
    code, _, err = command("restore", archive, "--data-dir", copy)
    assert (code, err) == (0, "")
    assert segments(copy)
    with WholeServer(copy, database_url=empty, secret_key="k" * 40) as server:
        server.chat(key, "ok")
        assert server.platform.ledger.flush(30)
    found = []
    for each in (url, empty):
        with psycopg.connect(each) as connection:
            query = f"SELECT {COLUMNS} FROM ledger_calls ORDER BY accepted_at LIMIT 3"
            found.append(connection.execute(query).fetchall())
    assert found[0] == found[1]
