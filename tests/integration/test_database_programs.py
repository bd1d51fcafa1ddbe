"""Test programs in the database."""

import threading
from datetime import UTC, datetime, timedelta

import databases
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from fairserve.interactions.programs.program import ProgramLimits, parse_program
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.programs import ProgramRow, ProgramStep
from fairserve.platform.db.rows import has_key
from fairserve.platform.serving.claims import LEASE
from fairserve.platform.serving.programs import repository
from fairserve.platform.serving.programs.repository import ProgramChange, ProgramKey, SavedProgram

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = ProgramKey("t", "a", "run/1")
DECLARATION = {
    "model": "m",
    "nodes": [
        {"id": "list", "prompt": "naïve ☃ \u0000"},
        {"id": "each", "prompt": "{{item}}", "map": {"over": "list"}},
    ],
}
AWKWARD = '["a\\u0000b", "\U0001f600", "\ufffd", "\'; drop table programs; --"]'


@pytest.fixture
def apps(sessions):
    with sessions.begin() as session:
        session.add(Tenant(id="t", name="t", created_at=NOW, suspended_at=None))
        session.flush()
        for app in ("a", "b"):
            shape = {"calls_per_interaction": 1, "idle_timeout_s": 1, "created_at": NOW}
            session.add(App(id=app, tenant_id="t", name=app, **shape))
    return sessions


def saved(key=KEY, **more):
    fields = {"state": "running", "reason": "", "created_at": NOW, **more}
    return SavedProgram(key, "ann", DECLARATION, ProgramLimits(nodes=7), **fields)


def insert(sessions, program):
    with sessions.begin() as session:
        repository.insert(session, program)


def apply(sessions, *changes):
    with sessions.begin() as session:
        return repository.apply(session, changes)


def claim(sessions, now=NOW, own=(), most=9):
    """Claim programs; return their keys and the numbers of their claims."""
    held = {tuple(key): key.tenant for key in own}
    rows = repository.PROGRAMS.claim(sessions, held, now, LEASE, most=most)
    return [(ProgramKey(row.tenant_id, row.app_id, row.id), row.attempt) for row in rows]


def count(sessions, model):
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(model))


@databases.ON_BOTH
def test_saved_programs_are_restored(apps):
    insert(apps, saved())
    assert repository.find(apps, KEY) == saved()
    assert repository.find(apps, KEY._replace(app="b")) is None

    program = parse_program(DECLARATION)
    run = ProgramRun(program)
    for event in (
        run.start,
        lambda: run.succeeded("list", AWKWARD),
        lambda: run.succeeded("each[1]", "two\x00 \U0001f600 \udcff"),
        lambda: run.failed("each[0]", "no\x00", again=True),
    ):
        event()
        assert apply(apps, ProgramChange(KEY, 0, run.changes())) == {KEY: 0}
    found = repository.find(apps, KEY)
    assert found.limits == ProgramLimits(nodes=7)
    again = ProgramRun.restore(program, found.run_state)
    assert again.to_plain() == run.to_plain()
    assert {task.task_id for task in again.start()} == {"each[0]", "each[2]", "each[3]"}


def test_saving_the_end_changes_no_other_program(apps):
    insert(apps, saved())
    insert(apps, saved(KEY._replace(app="b")))
    end = ProgramChange(KEY, 0, state="cancelled", reason="enough", ended_at=NOW)
    assert apply(apps, end) == {KEY: 0}
    found = repository.find(apps, KEY)
    assert (found.state, found.reason, found.ended_at) == ("cancelled", "enough", NOW)
    assert repository.find(apps, KEY._replace(app="b")).state == "running"
    assert claim(apps) == [(KEY._replace(app="b"), 1)]


def test_a_program_id_is_used_once(apps):
    insert(apps, saved())
    with pytest.raises(IntegrityError):
        insert(apps, saved())
    with apps.begin() as session:
        assert not repository.lease(KEY, 7).delete(session)
        assert repository.lease(KEY, saved().attempt).delete(session)
    insert(apps, saved())


def test_a_program_of_an_unknown_app_is_rejected(apps):
    with pytest.raises(IntegrityError):
        insert(apps, saved(KEY._replace(app="c")))


@databases.ON_BOTH
def test_waiting_programs_are_claimed_oldest_first_and_once(apps):
    keys = [KEY._replace(run_id=name) for name in ("c", "a", "b")]
    for number, key in enumerate(keys):
        insert(apps, saved(key, created_at=NOW + timedelta(seconds=number)))
    insert(apps, saved(KEY, attempt=1))
    assert claim(apps, most=2) == [(keys[0], 1), (keys[1], 1)]
    assert claim(apps) == [(keys[2], 1)], "others have a lease"
    assert claim(apps, NOW + LEASE) == []
    assert claim(apps, NOW + LEASE + timedelta(seconds=1), own=keys) == [(KEY, 2)]


@databases.ON_BOTH
def test_a_program_is_written_by_its_last_claim_only(apps):
    insert(apps, saved(attempt=1))
    first = repository.lease(KEY, 1)
    assert repository.renew(apps, [first], NOW + LEASE) == (set(), {})
    assert claim(apps, NOW + 2 * LEASE) == [], "its lease was renewed"
    assert claim(apps, NOW + 3 * LEASE) == [(KEY, 2)]
    late = {"tasks": {"list": {"attempt": 1}}}
    assert apply(apps, ProgramChange(KEY, 1, late, "complete", ended_at=NOW)) == {KEY: 2}
    found = repository.find(apps, KEY)
    assert (found.state, found.steps["tasks"]) == ("running", {})
    assert repository.renew(apps, [first], NOW) == ({KEY}, {})
    repository.release(apps, first)
    assert claim(apps, NOW + 3 * LEASE) == [], "another's lease is not released"
    repository.release(apps, repository.lease(KEY, 2))
    assert claim(apps, NOW) == [(KEY, 3)]


@databases.ON_BOTH
@pytest.mark.parametrize(
    ("table", "id", "column", "reason"),
    [
        (Tenant, "t", "suspended_at", "its tenant is suspended"),
        (Tenant, "t", "deleted_at", "its tenant was deleted"),
        (App, "a", "suspended_at", "its app is suspended"),
        (App, "a", "deleted_at", "its app was deleted"),
    ],
)
def test_programs_of_stopped_owners_are_to_be_cancelled(apps, table, id, column, reason):
    insert(apps, saved(attempt=1))
    lease = repository.lease(KEY, 1)
    assert repository.renew(apps, [lease], NOW) == (set(), {})
    with apps.begin() as session:
        setattr(session.get(table, id), column, NOW)
    assert repository.renew(apps, [lease], NOW) == (set(), {KEY: reason})


def test_the_first_reason_of_a_cancellation_counts(apps):
    insert(apps, saved(attempt=1))
    insert(apps, saved(KEY._replace(app="b"), attempt=1))
    for reason in ("enough", "too much"):
        repository.request_cancel(apps, has_key(ProgramRow, KEY), reason)
    leases = [repository.lease(KEY._replace(app=app), 1) for app in "ab"]
    assert repository.renew(apps, leases, NOW) == (set(), {KEY: "enough"})
    assert repository.any_running(apps, repository.of_user("t", "ann"))
    assert not repository.any_running(apps, repository.of_user("t", "bob"))


def test_deletion_cascades_from_app_to_program_to_steps(apps):
    insert(apps, saved())
    steps = {"nodes": {"list": {"state": "running"}}, "tasks": {"list": {"attempt": 1}}}
    apply(apps, ProgramChange(KEY, 0, steps))
    assert count(apps, ProgramStep) == 2
    with apps.begin() as session:
        session.delete(session.get(App, "a"))
    assert (count(apps, ProgramRow), count(apps, ProgramStep)) == (0, 0)
    assert apply(apps, ProgramChange(KEY, 0, steps)) == {}
    assert count(apps, ProgramStep) == 0


def test_old_ended_programs_are_deleted_with_their_outputs(apps):
    for days in range(5):
        key = KEY._replace(run_id=f"{days}")
        insert(apps, saved(key))
        steps = {"tasks": {"list": {"output": "text"}}}
        apply(apps, ProgramChange(key, 0, steps, "complete", ended_at=NOW + timedelta(days=days)))
    insert(apps, saved())
    deleted = []
    for _ in range(3):
        with apps.begin() as session:
            before = NOW + timedelta(days=3)
            deleted.append(repository.delete_before(session, before, max_rows=2))
    assert deleted == [2, 1, 0]
    with apps() as session:
        left = set(session.scalars(select(ProgramRow.id)))
    assert left == {"3", "4", KEY.run_id}
    assert count(apps, ProgramStep) == 2


@databases.ON_BOTH
def test_concurrent_writes_succeed(apps):
    keys = [KEY._replace(run_id=f"{number}") for number in range(4)]
    for key in keys:
        insert(apps, saved(key))

    def write(key):
        for attempt in range(1, 21):
            apply(apps, ProgramChange(key, 0, {"tasks": {"list": {"attempt": attempt}}}))

    threads = [threading.Thread(target=write, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in keys:
        assert repository.find(apps, key).steps["tasks"]["list"] == {"attempt": 20}
