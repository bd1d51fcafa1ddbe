"""Makers of exports: leases, attempts, outages, kills, two at once, expiry, erasure and purge."""

import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import randbytes

import pyarrow
import pytest
from export_world import LATER, ExportWorld, Killed
from processes import eventually
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.exports import claims, content, parts, repository, work
from fairserve.platform.exports.erasure import forget_user
from fairserve.platform.exports.parts import PartWriter
from fairserve.platform.exports.work import FORGOTTEN_AFTER, WAIT
from fairserve.platform.tenants.purge import purge

LISTED = {"kind": "interactions", "format": "json"}


@pytest.fixture
def world(management, monkeypatch):
    """Small pages and parts, so that every file has many."""
    monkeypatch.setattr(content, "PAGE_ROWS", 5)
    monkeypatch.setattr(parts, "PART_BYTES", 300)
    world = ExportWorld(management)
    world.fill()
    return world


def expected(world):
    return world.made(**LISTED).content


def killed_after(monkeypatch, pieces):
    """The process ends once so many parts are written; returns how to let others live."""
    real = PartWriter._write_part
    written = []

    def dies(self, data):
        if len(written) == pieces:
            raise Killed
        written.append(len(data))
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", dies)
    return lambda: monkeypatch.setattr(PartWriter, "_write_part", real)


def test_an_export_of_a_dead_maker_is_made_anew_after_its_lease(world, monkeypatch):
    whole = expected(world)
    export = world.ask(**LISTED)
    revive = killed_after(monkeypatch, 4)
    with pytest.raises(Killed):
        world.make()
    revive()
    under_way = world.look(export)
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


def test_after_three_lost_attempts_it_fails(world, monkeypatch):
    export = world.ask(**LISTED)
    for attempt in (1, 2, 3):
        revive = killed_after(monkeypatch, 2)
        with pytest.raises(Killed):
            world.make()
        revive()
        assert world.row(export).attempt == attempt
        world.at += LATER
    assert world.make() == 1
    failed = world.look(export)
    assert failed["state"] == "failed"
    assert "3 attempts" in failed["error"]
    assert world.parts() == {}
    world.at += LATER
    assert world.make() == 0


def test_what_is_made_again_is_not_mixed_with_what_was(world, monkeypatch):
    """The dead maker was only slow: what it writes afterwards is nobody's."""
    whole = expected(world)
    export = world.ask(**LISTED)
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


def test_a_slow_maker_writes_nothing_into_anothers_attempt(world, monkeypatch):
    whole = expected(world)
    export = world.ask(**LISTED)
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


def test_an_export_that_is_deleted_while_it_is_made_leaves_nothing(world, monkeypatch):
    export = world.ask(**LISTED)
    real = PartWriter._write_part

    def deleted(self, data):
        if self._number == 3:
            world.raw(f"/v1/usage/exports/{export['id']}", method="DELETE")
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", deleted)
    assert world.make() == 1
    assert world.look(export, status=404)
    assert world.parts() == {}


def test_what_is_stopped_is_given_back(world):
    export = world.ask(**LISTED)
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


def away():
    return OperationalError("SELECT 1", {}, Exception("the server closed the connection"))


def test_an_outage_is_waited_for_and_is_no_attempt(world, monkeypatch):
    whole = expected(world)
    export = world.ask(**LISTED)
    failures = iter(range(12))
    real_hold, real_after = claims.hold, content.interactions.after

    def hold(*args, **more):
        real_hold(*args, **more)
        if next(failures, None) is not None:
            raise away()

    def after(session, *args, **more):
        if next(failures, None) is not None:
            raise away()
        return real_after(session, *args, **more)

    pauses = []
    monkeypatch.setattr(claims, "hold", hold)
    monkeypatch.setattr(content.interactions, "after", after)
    assert world.make(pause=pauses.append) == 1
    assert len(pauses) == 12
    assert max(pauses) == 5.0
    row = world.row(export)
    assert (row.state, row.attempt, row.lost) == ("ready", 1, 0)
    assert world.file(export).content == whole


def test_a_commit_whose_answer_was_lost_changes_nothing(world, monkeypatch):
    whole = expected(world)
    export = world.ask(**LISTED)
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
                raise away()

    class Sessions:
        begin = Begin

        def __call__(self):
            return world.sessions()

    claimed = claims.claim(world.sessions, world.now, timedelta(hours=1))
    patient = work.Patience(lambda: False, lambda pause_s: None)
    work._make(Sessions(), world.settings, claimed, patient, world.now)
    assert len(lost) > 10
    assert world.file(export).content == whole


def test_nobody_waits_for_ever(world, monkeypatch):
    world.ask(**LISTED)
    pauses = []

    def gone(*args, **more):
        raise away()

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
        ({"group_by": ["galaxy"]}, "not allowed any more"),
    ],
)
def test_a_wrong_export_fails_at_once_with_its_reason(world, query, reason):
    for asked in ({}, {"kind": "interactions"}):
        if asked and "group_by" in query:
            continue
        export = world.ask(**asked)
        with world.sessions.begin() as session:
            session.execute(
                update(ReportExport).where(ReportExport.id == export["id"]).values(query=query)
            )
        assert world.make() == 1
        failed = world.look(export)
        assert failed["state"] == "failed"
        assert reason in failed["error"]
        assert world.row(export).attempt == 1


def test_a_fault_of_ours_fails_at_once_and_is_logged(world, monkeypatch, caplog):
    export = world.ask(**LISTED)
    monkeypatch.setattr(content.interactions, "count", lambda *args, **more: 1 / 0)
    assert world.make() == 1
    assert world.look(export)["error"] == "an internal error; the server's log tells more"
    assert "ZeroDivisionError" in caplog.text


def test_a_lease_is_extended_while_one_statement_runs(world, monkeypatch):
    export = world.ask(**LISTED)
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    real = content.interactions.count

    def long(*args, **more):
        world.at += timedelta(seconds=50)
        eventually(lambda: world.row(export).lease_until == world.at + claims.LEASE)
        return real(*args, **more)

    monkeypatch.setattr(content.interactions, "count", long)
    assert world.make() == 1
    assert world.look(export)["state"] == "ready"
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("lease of") for name in names)


def test_tenants_take_turns(world, monkeypatch):
    mine = [world.ask(**LISTED) for _ in range(3)]
    other = [world.ask(world.other["api_key"], **LISTED) for _ in range(2)]
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


def test_two_makers_at_once_make_each_export_once(world, monkeypatch):
    exports = [world.ask(kind="interactions", format=f) for f in ("json", "csv", "parquet") * 3]
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
from fairserve.platform.exports import content, parts
from fairserve.platform.exports.work import make_exports
from fairserve.platform.settings import Settings

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


@pytest.mark.parametrize("where", ["_write_part", "_check_room"])
def test_a_maker_that_is_killed_is_followed_by_another(world, engine, where):
    """Between two parts, and within the transaction of one."""
    whole = expected(world)
    export = world.ask(**LISTED)
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-W", "error", "-c", CHILD, url, where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "stuck\n"
            assert world.parts()[export["id"], 1] == 3
            assert world.look(export)["state"] == "running"
        finally:
            child.kill()
    assert child.returncode == -9
    assert world.make() == 0
    world.at = utc_now() + LATER
    assert world.make() == 1
    assert world.file(export).content == whole
    assert {key for key in world.parts() if key[0] == export["id"]} == {(export["id"], 2)}


def test_files_expire_and_rows_go_later(world):
    export, kept = world.ask(**LISTED), world.ask(world.other["api_key"], **LISTED)
    world.make()
    world.at += timedelta(hours=71)
    assert world.expire() == 0
    assert len(world.parts()) == 2
    world.at += timedelta(hours=1)
    assert world.expire() == 2
    assert world.parts() == {}
    assert world.expire() == 0
    for each, key in ((export, world.key), (kept, world.other["api_key"])):
        assert world.look(each, key)["state"] == "expired"
        assert world.file(each, key).status_code == 410
    world.at += FORGOTTEN_AFTER
    assert world.expire() == 2
    world.look(export, status=404)


def test_an_expiry_that_was_cut_off_is_finished_by_the_next(world, monkeypatch):
    world.ask(**LISTED)
    world.make()
    world.at += timedelta(hours=72)
    monkeypatch.setattr(repository, "_DELETED_PARTS", 2)

    def dies(*args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(repository, "drop_parts", dies)
        with pytest.raises(Killed):
            world.expire()
    assert world.parts()
    assert world.expire() == 0
    assert world.parts() == {}


def test_parts_of_no_file_go(world, monkeypatch):
    """What a maker left that was stopped, and nobody has taken up its export yet."""
    export = world.ask(**LISTED)
    revive = killed_after(monkeypatch, 3)
    with pytest.raises(Killed):
        world.make()
    revive()
    assert world.expire() == 0
    assert world.parts() == {(export["id"], 1): 3}, "it may live"
    claims.give_back(world.sessions, world.row(export))
    world.expire()
    assert world.parts() == {}


def test_what_nobody_makes_fails_in_the_end(world):
    export = world.ask(**LISTED)
    world.at += WAIT
    assert world.expire() == 0
    world.at += LATER
    assert world.expire() == 1
    assert "does a server run" in world.look(export)["error"]
    assert world.make() == 0


def test_a_reader_of_what_is_deleted_meanwhile_gets_no_whole_file(world):
    export = world.ask(**LISTED)
    world.make()
    row = world.row(export)
    read = repository.parts(world.sessions, row.id, row.attempt, row.size_bytes)
    assert len(next(read)) == 300
    world.raw(f"/v1/usage/exports/{export['id']}", method="DELETE")
    with pytest.raises(ConnectionAbortedError):
        list(read)


def test_an_erasure_takes_what_may_name_the_user(world, monkeypatch):
    admin, other = world.management.admin, world.other["api_key"]
    about = "/admin/usage/exports"
    goes = [
        world.ask(**LISTED),
        world.ask(world.app["api_key"], group_by="user"),
        world.ask(format="html"),
        world.ask(user="Zoe", format="csv"),
        world.ask(admin, about, group_by="user"),
        world.ask(admin, about, tenant=world.one["id"], kind="interactions"),
    ]
    stays = [
        world.ask(group_by="app,day", format="csv"),
        world.ask(user="anna"),
        world.ask(other, group_by="user"),
        world.ask(admin, about, tenant=world.other["id"], kind="interactions"),
    ]
    assert world.make() == 10
    waits = [world.ask(user="Zoe"), world.ask(user="anna"), world.ask(group_by="user")]
    assert forget_user(world.sessions, world.one["id"], "Zoe") == 7
    left = {item["id"] for item in world.management.call(admin, "GET", about)["items"]}
    assert left == {export["id"] for export in [*stays, *waits[1:]]}
    assert {key[0] for key in world.parts()} == {export["id"] for export in stays}
    assert forget_user(world.sessions, world.one["id"], "Zoe") == 0
    assert not left & {export["id"] for export in goes}
    assert world.make() == 2


def test_an_erasure_voids_what_is_being_made(world, monkeypatch):
    """It has read the user's rows already."""
    export = world.ask(**LISTED)
    real = PartWriter._write_part
    erased = []

    def erase(self, data):
        if self._number == 3 and not erased:
            assert forget_user(world.sessions, world.one["id"], "Zoe") == 0
            erased.append(world.parts())
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", erase)
    assert world.make() == 2, "once in vain, and once anew"
    assert erased == [{}]
    row = world.row(export)
    assert (row.state, row.attempt, row.lost) == ("ready", 2, 0)


@pytest.mark.parametrize("kind", ["app", "tenant"])
def test_a_purge_takes_the_exports(world, kind):
    exports = [world.ask(world.app["api_key"]), world.ask(), world.ask(world.other["api_key"])]
    world.make()
    if kind == "app":
        world.management.call(world.key, "DELETE", f"/v1/apps/{world.app['id']}")
    else:
        world.management.call(world.management.admin, "DELETE", f"/admin/tenants/{world.one['id']}")
    while True:
        with world.sessions.begin() as session:
            if not purge(session, utc_now() + timedelta(seconds=1)):
                break
    with world.sessions() as session:
        left = set(session.scalars(select(ReportExport.id)))
        assert set(session.scalars(select(ReportExportPart.export_id))) == left
    assert left == {export["id"] for export in exports[{"app": 1, "tenant": 2}[kind] :]}


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_memory_does_not_grow_with_the_file(world, monkeypatch, format):
    """Peaks of Python's and Arrow's memory while ten times as many interactions are exported."""
    monkeypatch.setattr(content, "PAGE_ROWS", 200)
    monkeypatch.setattr(content.interactions, "count", lambda *args, **more: 1)
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 16)
    with world.sessions() as session:
        some = content.interactions.after(
            session, content.InteractionQuery(), None, tenant_id=None, app_id=None, rows=20
        )

    def peak(pages):
        left = iter(range(pages))
        arrow_bytes = []

        def after(*args, **more):
            arrow_bytes.append(pyarrow.total_allocated_bytes())
            rows = some * 10 if next(left, None) is not None else []
            return [row.model_copy(update={"interaction": randbytes(40).hex()}) for row in rows]

        monkeypatch.setattr(content.interactions, "after", after)
        monkeypatch.setattr("fairserve.platform.exports.interaction_files.GROUP_ROWS", 1000)
        export = world.ask(kind="interactions", format=format)
        tracemalloc.start()
        assert world.make() == 1
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes + max(arrow_bytes) - arrow_bytes[0], world.row(export).size_bytes

    peak(2)
    (few, _), (many, size_bytes) = peak(8), peak(80)
    assert size_bytes > many / 2
    assert many < 2 * few, (few, many, size_bytes)
