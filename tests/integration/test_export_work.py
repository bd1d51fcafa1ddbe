"""Test export jobs: leases, attempts, outages, kills, concurrent processes."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import databases
import pytest
from export_world import LATER, LISTED, Killed, filled_world, killed_after, whole_file
from processes import eventually
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.reporting.exports import claims, content, work
from fairserve.platform.reporting.exports.parts import PartWriter

pytestmark = databases.ON_POSTGRESQL


@pytest.fixture
def world(management, monkeypatch):
    return filled_world(management, monkeypatch, call_count=0)


def test_an_export_of_a_dead_process_is_retried_after_its_lease(world, monkeypatch):
    whole = whole_file(world)
    export = world.request_export(**LISTED)
    revive = killed_after(monkeypatch, 4)
    with pytest.raises(Killed):
        world.make()
    revive()
    under_way = world.read_export(export)
    assert under_way["state"] == "running"
    assert 0 < under_way["progress"] < 1
    assert world.file(export).json()["error"]["fairserve"] == {"state": "running"}
    assert world.parts()[export["id"], 1] == 4
    world.at += claims.LEASE
    assert world.make() == 0, "its lease holds still"
    world.at += timedelta(seconds=1)
    assert world.make() == 1
    assert world.file(export).content == whole
    assert (export["id"], 1) not in world.parts()
    row = world.row(export)
    assert (row.attempt, row.lost, row.size_bytes) == (2, 1, len(whole))


def test_an_export_fails_after_three_lost_attempts(world, monkeypatch):
    export = world.request_export(**LISTED)
    for attempt in (1, 2, 3):
        revive = killed_after(monkeypatch, 2)
        with pytest.raises(Killed):
            world.make()
        revive()
        assert world.row(export).attempt == attempt
        world.at += LATER
    assert world.make() == 1
    failed = world.read_export(export)
    assert failed["state"] == "failed"
    assert "3 attempts" in failed["error"]
    assert world.parts() == {}
    world.at += LATER
    assert world.make() == 0


def test_the_parts_of_two_attempts_are_not_mixed(world, monkeypatch):
    """A slow process whose lease expired writes nothing into the next attempt."""
    whole = whole_file(world)
    export = world.request_export(**LISTED)
    real = PartWriter._write_part
    overtaken = []

    def slow(self, data):
        if self._number == 3 and not overtaken:
            overtaken.append(export["id"])
            world.at += LATER
            assert world.make() == 1
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", slow)
    assert world.make() == 1
    assert overtaken
    assert world.row(export).attempt == 2
    assert world.file(export).content == whole
    assert {key for key in world.parts() if key[0] == export["id"]} == {(export["id"], 2)}


def test_a_slow_process_cannot_write_into_another_attempt(world, monkeypatch):
    whole = whole_file(world)
    export = world.request_export(**LISTED)
    real = PartWriter._write_part

    def slow(self, data):
        if self._number == 3:
            world.at += LATER
            assert claims.claim(world.sessions, world.now, timedelta(hours=1)).attempt == 2
        real(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(PartWriter, "_write_part", slow)
        assert world.make() == 1
    row = world.row(export)
    assert (row.state, row.attempt, row.size_bytes) == ("running", 2, 0)
    world.at += LATER
    assert world.make() == 1
    assert world.file(export).content == whole


def test_an_export_deleted_during_its_work_leaves_nothing(world, monkeypatch):
    export = world.request_export(**LISTED)
    real = PartWriter._write_part

    def deleted(self, data):
        if self._number == 3:
            world.raw(f"/v1/usage/exports/{export['id']}", method="DELETE")
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", deleted)
    assert world.make() == 1
    assert world.read_export(export, status=404)
    assert world.parts() == {}


def test_a_stopped_export_is_released(world):
    export = world.request_export(**LISTED)
    asked = []

    def stopping():
        asked.append(None)
        return len(asked) > 4

    assert world.make(stopping=stopping) == 0
    row = world.row(export)
    assert (row.state, row.attempt, row.lost, row.lease_until) == ("queued", 1, 0, None)
    assert world.make(stopping=lambda: True) == 0
    assert world.make() == 1
    assert world.file(export).status_code == 200


def unavailable():
    return OperationalError("SELECT 1", {}, Exception("the server closed the connection"))


def test_an_outage_costs_no_attempt(world, monkeypatch):
    whole = whole_file(world)
    export = world.request_export(**LISTED)
    failures = iter(range(12))
    real_renew, real_after = claims.renew, content.interactions.after

    def renew(*args, **more):
        real_renew(*args, **more)
        if next(failures, None) is not None:
            raise unavailable()

    def after(session, *args, **more):
        if next(failures, None) is not None:
            raise unavailable()
        return real_after(session, *args, **more)

    pauses = []
    monkeypatch.setattr(claims, "renew", renew)
    monkeypatch.setattr(content.interactions, "after", after)
    assert world.make(pause=pauses.append) == 1
    assert len(pauses) == 12
    assert max(pauses) == 5.0
    row = world.row(export)
    assert (row.state, row.attempt, row.lost) == ("ready", 1, 0)
    assert world.file(export).content == whole


def test_a_commit_with_a_lost_answer_changes_nothing(world, monkeypatch):
    whole = whole_file(world)
    export = world.request_export(**LISTED)
    real_begin = world.sessions.begin
    lost = []

    class Begin:
        def __init__(self):
            self.context = real_begin()

        def __enter__(self):
            return self.context.__enter__()

        def __exit__(self, *exc):
            self.context.__exit__(*exc)
            if exc[0] is None and len(lost) < 30 and lost.append(None) is None and len(lost) % 2:
                raise unavailable()

    class Sessions:
        begin = Begin

        def __call__(self):
            return world.sessions()

    claimed = claims.claim(world.sessions, world.now, timedelta(hours=1))
    persistent = work.RetryWhileDbDown(lambda: False, lambda pause_s: None)
    work._make(Sessions(), world.settings, claimed, persistent, world.now)
    assert len(lost) > 10
    assert world.file(export).content == whole


def test_waiting_for_the_database_is_bounded(world, monkeypatch):
    world.request_export(**LISTED)
    pauses = []

    def gone(*args, **more):
        raise unavailable()

    monkeypatch.setattr(content.interactions, "count", gone)
    with pytest.raises(OperationalError):
        world.make(pause=pauses.append)
    assert 300 <= sum(pauses) <= 310
    waiting = iter([False, False, False, True, True])
    world.at += LATER
    assert world.make(pause=pauses.append, stopping=lambda: next(waiting)) == 0


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"zone": "Mars/Base"}, "no such time zone"),
        ({"group_by": ["galaxy"]}, "no longer allowed"),
    ],
)
def test_an_invalid_export_fails_immediately_with_its_reason(world, query, reason):
    for asked in ({}, {"kind": "interactions"}):
        if asked and "group_by" in query:
            continue
        export = world.request_export(**asked)
        with world.sessions.begin() as session:
            session.execute(
                update(ReportExport).where(ReportExport.id == export["id"]).values(query=query)
            )
        assert world.make() == 1
        failed = world.read_export(export)
        assert failed["state"] == "failed"
        assert reason in failed["error"]
        assert world.row(export).attempt == 1


def test_an_internal_error_fails_immediately_and_is_logged(world, monkeypatch, caplog):
    export = world.request_export(**LISTED)
    monkeypatch.setattr(content.interactions, "count", lambda *args, **more: 1 / 0)
    assert world.make() == 1
    assert (
        world.read_export(export)["error"]
        == "internal error; an operator finds details in the server's log"
    )
    assert "ZeroDivisionError" in caplog.text


def test_a_lease_is_extended_while_one_statement_runs(world, monkeypatch):
    export = world.request_export(**LISTED)
    monkeypatch.setattr(claims, "RENEWAL_INTERVAL_S", 0.01)
    real = content.interactions.count

    def long(*args, **more):
        world.at += timedelta(seconds=50)
        eventually(lambda: world.row(export).lease_until == world.at + claims.LEASE)
        return real(*args, **more)

    monkeypatch.setattr(content.interactions, "count", long)
    assert world.make() == 1
    assert world.read_export(export)["state"] == "ready"
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("lease of") for name in names)


def test_tenants_take_turns(world, monkeypatch):
    mine = [world.request_export(**LISTED) for _ in range(3)]
    other = [world.request_export(world.other["api_key"], **LISTED) for _ in range(2)]
    turns = []
    real = claims.claim

    def claim(*args):
        world.at += timedelta(seconds=1)
        export = real(*args)
        turns.append(export and export.id)
        return export

    monkeypatch.setattr(claims, "claim", claim)
    assert world.make() == 5
    order = [mine[0], other[0], mine[1], other[1], mine[2]]
    assert turns == [*(export["id"] for export in order), None]


@databases.ON_BOTH
def test_two_processes_make_each_export_once(world, monkeypatch):
    exports = [
        world.request_export(kind="interactions", format=f) for f in ("json", "csv", "parquet") * 3
    ]
    made = []
    real = work.content

    def content_of(export, *args, **more):
        made.append(export.id)
        return real(export, *args, **more)

    monkeypatch.setattr(work, "content", content_of)
    together = threading.Barrier(3)

    def maker(_):
        together.wait(30)
        return world.make()

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(maker, range(3))) == 9
    assert sorted(made) == sorted(export["id"] for export in exports)
    for export in exports:
        row = world.row(export)
        assert (row.state, row.attempt) == ("ready", 1)
        assert len(world.file(export).content) == row.size_bytes


CHILD = """
import sys, threading
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.reporting.exports import content, parts
from fairserve.platform.reporting.exports.work import make_exports
from fairserve.platform.server.settings import Settings

url, where = sys.argv[1:]
content.PAGE_ROWS, parts.PART_BYTES = 5, 300
real = getattr(parts.PartWriter, where)

def stuck(self, *args):
    if self._number == 3:
        print("stuck", flush=True)
        threading.Event().wait()
    real(self, *args)

setattr(parts.PartWriter, where, stuck)
make_exports(session_factory(connect(url)), Settings())
"""


@pytest.mark.parametrize("where", ["_write_part", "_check_capacity"])
def test_another_process_finishes_after_a_kill(world, engine, where):
    """The process is killed between two parts, or within the transaction of one."""
    whole = whole_file(world)
    export = world.request_export(**LISTED)
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-W", "error", "-c", CHILD, url, where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "stuck\n"
            assert world.parts()[export["id"], 1] == 3
            assert world.read_export(export)["state"] == "running"
        finally:
            child.kill()
    assert child.returncode == -9
    assert world.make() == 0
    world.at = utc_now() + LATER
    assert world.make() == 1
    assert world.file(export).content == whole
    assert {key for key in world.parts() if key[0] == export["id"]} == {(export["id"], 2)}
