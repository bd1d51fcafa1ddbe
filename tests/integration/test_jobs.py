"""Test background jobs in virtual time: their passes, failures and states."""

import asyncio
from datetime import UTC, datetime, timedelta

import databases
import pytest
from sqlalchemy.exc import OperationalError
from until import settle, until

from fairserve.platform.background.jobs.in_process import JobsInProcess
from fairserve.platform.background.jobs.job import Job, JobContext
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.jobs.passes import (
    MOST_FAILURES,
    JobFailedError,
    replay,
    retry_at,
    run_pass,
    state_of,
)
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.server.cli import main
from fairserve.platform.server.settings import Settings

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """One job with a given result, and a manual clock."""

    def __init__(self, sessions, tmp_path):
        settings = Settings(data_dir=tmp_path / "data")
        self.sessions, self.now, self.passes = sessions, BEGIN, 0
        self.context = JobContext(sessions, settings, KeyHasher(b"x" * 32))
        self.result = 0
        self.job = Job("work", "works", lambda settings: 0.01, self._run)

    def _run(self, context, stopping):
        self.passes += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def step(self):
        return run_pass(self.job, self.context, lambda: False, now=lambda: self.now)

    def fail(self, error=None):
        self.result = error or RuntimeError("no use")
        with pytest.raises(JobFailedError):
            self.step()

    @property
    def state(self):
        return state_of(self.sessions, "work")


@pytest.fixture
def world(sessions, tmp_path):
    return World(sessions, tmp_path)


def test_a_pass_is_recorded(world):
    assert world.state is None
    world.result = 7
    assert world.step() == 7
    state = world.state
    assert (state.succeeded_at, state.done, state.failures, state.error) == (BEGIN, 7, 0, "")
    assert retry_at(state) is None


def test_an_idle_job_writes_rarely(world):
    world.step()
    for seconds in (1, 30, 59):
        world.now = BEGIN + timedelta(seconds=seconds)
        assert world.step() == 0
        assert world.state.succeeded_at == BEGIN
    world.now = BEGIN + timedelta(seconds=60)
    world.step()
    assert world.state.succeeded_at == world.now


def test_a_failing_job_backs_off_and_becomes_dead(world):
    waits = []
    for failures in range(1, MOST_FAILURES + 4):
        world.fail()
        state = world.state
        assert (state.failures, state.error) == (failures, "RuntimeError: no use")
        assert (state.dead_at is not None) == (failures >= MOST_FAILURES)
        due = retry_at(state)
        passes = world.passes
        world.now = due - timedelta(milliseconds=1)
        assert world.step() == 0
        assert world.passes == passes
        waits.append(due - state.failed_at)
        world.now = due
    assert waits == [timedelta(seconds=min(5 * 2**n, 3600)) for n in range(MOST_FAILURES + 3)]


def test_a_dead_job_recovers_on_success(world):
    for _ in range(MOST_FAILURES):
        world.fail()
        world.now = retry_at(world.state)
    world.result = 0
    world.step()
    state = world.state
    assert (state.failures, state.dead_at, state.error) == (0, None, "RuntimeError: no use")


def test_a_replay_resets_the_failures_and_keeps_the_error(world):
    for _ in range(MOST_FAILURES):
        world.fail()
        world.now = retry_at(world.state)
    world.now = world.state.failed_at
    with world.sessions.begin() as session:
        replay(session, "work")
    assert (world.state.failures, world.state.dead_at) == (0, None)
    assert world.state.error == "RuntimeError: no use"
    world.result = 3
    assert world.step() == 3


def test_a_database_outage_is_not_a_failure(world):
    world.result = OperationalError("select 1", {}, Exception("away"))
    with pytest.raises(OperationalError):
        world.step()
    assert world.state is None


@databases.ON_POSTGRESQL
def test_an_error_with_unstorable_characters_is_kept(world):
    world.fail(RuntimeError("a\x00b\ud800" + "x" * 5000))
    assert world.state.error.startswith("RuntimeError: ab?xxx")
    assert len(world.state.error) == 1000


async def test_the_server_runs_jobs_repeatedly(world):
    jobs = JobsInProcess({"work": world.job}, world.context)
    jobs.start()
    await until(lambda: world.passes >= 3)
    await jobs.stop()
    passes = world.passes
    await settle()
    assert world.passes == passes


async def test_a_requested_job_runs_early(world):
    job = Job("work", "works", lambda settings: 3600.0, world._run)
    jobs = JobsInProcess({"work": job}, world.context)
    jobs.request("work")
    jobs.start()
    await until(lambda: world.passes == 1)
    await asyncio.to_thread(jobs.request, "work")
    await until(lambda: world.passes == 2)
    await jobs.stop()


async def test_a_reload_changes_the_settings_of_running_jobs(world):
    seen = []
    world.job = Job("work", "works", world.job.interval_s, lambda context, _: _noted(seen, context))
    jobs = JobsInProcess({"work": world.job}, world.context)
    jobs.start()
    await until(lambda: seen)
    jobs.reload(world.context.settings.changed(usage_retention_days=11))
    await until(lambda: seen[-1] == 11)
    await jobs.stop()


def _noted(seen, context):
    seen.append(context.settings.reporting.usage_retention_days)
    return 0


async def test_a_failure_does_not_end_the_loop_of_a_job(world):
    world.result = RuntimeError("once")
    jobs = JobsInProcess({"work": world.job}, world.context)
    jobs.start()
    await until(lambda: world.state is not None and world.state.failures == 1)
    world.result = 5
    await asyncio.to_thread(_forget, world)
    await until(lambda: world.state.done == 5)
    await jobs.stop()


def _forget(world):
    with world.sessions.begin() as session:
        replay(session, "work")


def test_operators_see_the_jobs_and_run_one(management):
    found = management.call(management.admin_key, "GET", "/admin/jobs")
    assert found["done_by"] == "here"
    assert [job["name"] for job in found["items"]] == list(JOBS)
    assert {job["health"] for job in found["items"]} == {"new"}
    state = management.state
    context = JobContext(state.session_factory, state.settings, management.hasher)

    def broken(context, stopping):
        raise ValueError("broken")

    job = Job("rollup", "", lambda settings: 5.0, broken)
    now = [BEGIN]
    for _ in range(MOST_FAILURES):
        with pytest.raises(JobFailedError):
            run_pass(job, context, lambda: False, now=lambda: now[0])
        now[0] = retry_at(state_of(context.sessions, "rollup"))
    shown = management.call(management.admin_key, "GET", "/admin/jobs")["items"][0]
    assert (shown["health"], shown["error"]) == ("dead", "ValueError: broken")
    ran = management.call(management.admin_key, "POST", "/admin/jobs/rollup/run", status=202)
    assert (ran["health"], ran["error"]) == ("new", "ValueError: broken")
    assert management.jobs.asked == ["rollup"]
    run_pass(JOBS["rollup"], context, lambda: False)
    shown = management.call(management.admin_key, "GET", "/admin/jobs")["items"][0]
    assert (shown["health"], shown["failures"]) == ("fine", 0)
    management.call(management.admin_key, "POST", "/admin/jobs/nothing/run", status=404)
    tenant = management.new_tenant("acme")
    management.call(tenant["api_key"], "GET", "/admin/jobs", status=403)


def test_a_job_that_does_not_run_is_reported_late(management):
    state = management.state
    context = JobContext(state.session_factory, state.settings, management.hasher)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    run_pass(JOBS["rollup"], context, lambda: False, now=lambda: long_ago)
    run_pass(JOBS["retention"], context, lambda: False, now=lambda: long_ago)
    jobs = management.call(management.admin_key, "GET", "/admin/jobs")["items"]
    assert {job["name"]: job["health"] for job in jobs} == {
        name: {"rollup": "late", "retention": "fine"}.get(name, "new") for name in JOBS
    }


def test_the_command_lists_and_runs_jobs(engine, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "s" * 32)
    given = ["--database-url", engine.url.render_as_string(hide_password=False)]
    given += ["--data-dir", str(tmp_path / "data")]
    assert main(["jobs", "list", *given]) == 0
    assert "rollup" in capsys.readouterr().out
    for name in JOBS:
        assert main(["jobs", "run", name, *given]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: 0 done" for name in JOBS]
    assert main(["jobs", "list", *given]) == 0
    assert capsys.readouterr().out.count("fine") == len(JOBS)
    assert main(["jobs", "run", "nothing", *given]) == 2
    assert main(["jobs", "worker", *given]) == 2
    assert "Redis" in capsys.readouterr().err


def test_a_job_runs_again_after_the_clock_went_back(world):
    world.now = BEGIN + timedelta(days=2)
    world.fail()
    world.now, world.result = BEGIN, 0
    world.step()
    assert world.passes == 2
    assert (world.state.failures, world.state.succeeded_at) == (0, BEGIN)
    world.now = BEGIN + timedelta(days=2)
    world.step()
    world.now = BEGIN + timedelta(hours=1)
    world.step()
    assert world.state.succeeded_at == world.now
