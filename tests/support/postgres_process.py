"""A PostgreSQL of the tests, from the installed binaries.

It runs as an unprivileged user where the tests run as root, and is stopped by its pid.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from processes import eventually, free_port

from fairserve.platform.db.engine import connect
from fairserve.platform.db.schema import upgrade

START_TIMEOUT_S = 60


def missing(reason: str) -> None:
    """Skip the test that needs something which is not installed; fail it under CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    paths = ([Path(found).resolve()] if found else []) + candidates
    for path in paths:
        if (path.parent / "postgres").exists():
            return path.parent
    return None


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that PostgreSQL runs as, because it rejects root. None: the present user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    missing("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
    return None


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yield the URL of a running PostgreSQL, without a database name."""
    binaries = _binaries()
    if binaries is None:
        missing("PostgreSQL's binaries (initdb, postgres) are not installed")
    user = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="fairserve-postgres-"))
    as_user = {}
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data, log_path = folder / "data", folder / "log"
    server = None
    try:
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-N", "-E", "UTF8"],
            cwd=folder,
            check=True,
            capture_output=True,
            **as_user,
        )
        port = free_port()
        options = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with log_path.open("wb") as log:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, *flags],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user,
            )
        url = f"postgresql://tests@127.0.0.1:{port}"
        _wait_until_ready(url, server, log_path)
        yield url
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # at once: its data is no longer needed
            try:
                server.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(url: str, server: subprocess.Popen, log: Path) -> None:
    def answers() -> bool:
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if server.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from error
            return False
        return True

    eventually(
        answers, lambda: f"PostgreSQL did not start: {log.read_text()}", deadline_s=START_TIMEOUT_S
    )


def new_template(server: str) -> str:
    """Return the name of a PostgreSQL database with the present schema, to be copied."""
    name = "template_of_tests"
    execute(server, f"CREATE DATABASE {name}")
    engine = connect(f"{server}/{name}")
    upgrade(engine)
    engine.dispose()
    return name


def execute(server: str, statement: str) -> None:
    """Execute a statement outside a transaction."""
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(statement)


def new_database(server: str, template: str = "template0") -> str:
    """Create a database, and return its URL."""
    name = f"t_{uuid.uuid4().hex}"
    execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server}/{name}"
