"""Test the execution of one program with scripted calls: sent calls, saved state, its end."""

import asyncio
from datetime import timedelta

import pytest
from program_calls import Calls, add_apps, database, declare, node
from sqlalchemy.exc import OperationalError
from until import settle, until

from fairserve.interactions.programs.program import ProgramLimits, parse_program
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.platform.base.errors import (
    ContextLengthError,
    NotFoundError,
    RateLimitedError,
    UnavailableError,
    WorkerFailedError,
)
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import App
from fairserve.platform.serving.programs import repository
from fairserve.platform.serving.programs.execution import ProgramExecution, ProgramExecutionOptions
from fairserve.platform.serving.programs.repository import ProgramKey, SavedProgram
from fairserve.platform.serving.programs.store import ProgramStore
from fairserve.platform.serving.programs.task_calls import ProgramOwner

KEY = ProgramKey("t", "a", "run")
SOON = {"Retry-After": "0"}


class Control:
    def __init__(self):
        self.closed = []

    async def close_interaction(self, run_id, *, cancel, failed=False):
        self.closed.append((run_id, cancel, failed))

    async def recorded(self):
        pass


class World:
    """One program, its database and its calls."""

    def __init__(self, folder, program, script=(), **options):
        self.engine, self.sessions = database(folder)
        self.store = ProgramStore(self.sessions, retry_s=0.001)
        self.store.start()
        self.control = Control()
        self.calls = Calls(dict(script))
        self.declaration = program
        self.events = []
        self.options = ProgramExecutionOptions(**{"first_wait_s": 0.001, **options})

    async def begin(self, left_s=60.0):
        if self.saved() is None:
            add_apps(self.sessions, "a")
            saved = SavedProgram(
                KEY, "ann", self.declaration, ProgramLimits(), "running", "", utc_now()
            )
            await self.store.insert(saved)
        saved = self.saved()
        program = parse_program(saved.declaration, saved.limits)
        run = ProgramRun.restore(program, saved.run_state)
        self.execution = ProgramExecution(
            ProgramOwner(KEY, "ann"),
            run,
            self.control,
            self.calls,
            self.store,
            self.options,
            attempt=saved.attempt,
            left_s=left_s,
            publish=self.events.append,
        )
        self.task = asyncio.create_task(self.execution.work())
        return self

    async def end(self):
        async with asyncio.timeout(30):
            await self.task
        return self.saved()

    def saved(self):
        return repository.find(self.sessions, KEY)


@pytest.fixture
async def world(tmp_path):
    made = []

    async def make(program, script=(), *, left_s=60.0, **options):
        made.append(World(tmp_path, program, script, **options))
        return await made[-1].begin(left_s)

    yield make
    for each in made:
        each.task.cancel()
        await asyncio.gather(each.task, return_exceptions=True)
        await each.store.close()
        each.engine.dispose()


async def test_the_inputs_of_a_call_are_saved_before_it_is_sent(world):
    program = declare(node("a"), node("b", "{{a.output}}!"), node("c", "{{b.output}}?"))
    made = await world(program)
    seen = []

    def before(task):
        tasks = made.saved().steps["tasks"]
        seen.append({name: (each["state"], each["output"]) for name, each in tasks.items()})

    made.calls.before = before
    saved = await made.end()
    assert seen == [
        {"a": ("running", None)},
        {"a": ("done", "x"), "b": ("running", None)},
        {"a": ("done", "x"), "b": ("done", "x!"), "c": ("running", None)},
    ]
    assert (saved.state, saved.reason) == ("complete", "")
    assert utc_now() - saved.ended_at < timedelta(seconds=30)
    assert saved.steps["tasks"]["c"]["output"] == "x!?"
    assert made.control.closed == [("a/run", False, False)]
    assert [(each.id, each.state) for each in made.events] == [
        *(("a", "running"), ("a", "done"), ("b", "running")),
        *(("b", "done"), ("c", "running"), ("c", "done")),
    ]


@pytest.mark.parametrize(
    "rejection",
    [
        RateLimitedError("wait", headers=SOON),
        UnavailableError("full", code="queue_full", headers=SOON),
        UnavailableError("not yet", code="starting", headers=SOON),
    ],
)
async def test_a_rejected_call_is_repeated_without_using_a_retry(world, rejection):
    made = await world(declare(node("a", retries=0)), {"a": [rejection] * 4})
    saved = await made.end()
    assert saved.state == "complete"
    assert made.calls.made == [("a", 1, ())] * 5


async def test_an_expired_wait_uses_no_retry(world):
    too_long = UnavailableError("no worker was free", code="queue_timeout", headers=SOON)
    program = declare(node("a", retries=0), node("b", "{{a.output}}"))
    made = await world(program, {"a": [too_long] * 2})
    assert (await made.end()).state == "complete"
    assert made.calls.made == [("a", 1, ()), ("a", 2, ()), ("a", 3, ()), ("b", 1, ("a~3",))]


async def test_worker_failures_are_retried_and_invalid_calls_are_not(world):
    program = declare(node("a", retries=2), node("b", retries=2), node("c", retries=1))
    broken = WorkerFailedError("broken")
    script = {"a": [broken, broken], "b": [ContextLengthError("too long")], "c": [broken] * 2}
    made = await world(program, script)
    saved = await made.end()
    attempts = {each: [n for task, n, _ in made.calls.made if task == each] for each in "abc"}
    assert attempts == {"a": [1, 2, 3], "b": [1], "c": [1, 2]}
    states = {name: each["state"] for name, each in saved.steps["nodes"].items()}
    assert states == {"a": "done", "b": "failed", "c": "failed"}
    assert saved.steps["nodes"]["b"]["reason"] == "too long"
    assert (saved.state, made.control.closed) == ("failed", [("a/run", False, True)])


async def test_an_internal_error_fails_only_its_call(world):
    made = await world(declare(node("a"), node("b")), {"a": [KeyError("oops")]})
    saved = await made.end()
    assert saved.steps["nodes"]["a"]["reason"] == "internal error: KeyError"
    assert saved.steps["nodes"]["b"]["state"] == "done"


async def test_concurrent_calls_are_bounded_longest_path_first(world):
    nodes = [
        node("short", expected_output_tokens=1),
        node("long", expected_output_tokens=500),
        node("longer", expected_output_tokens=10),
        node("end", "{{longer.output}}", expected_output_tokens=1000),
    ]
    made = await world(declare(*nodes), parallel_calls=1)
    await made.end()
    assert [task for task, _, _ in made.calls.made] == ["longer", "end", "long", "short"]
    assert made.calls.most == 1


async def test_the_time_of_a_program_is_bounded(world):
    made = await world(declare(node("a"), node("b", "{{a.output}}")), {"a": ["hold"]}, left_s=0.05)
    await until(lambda: made.control.closed)
    made.calls.released.set()
    saved = await made.end()
    assert (saved.state, saved.reason) == ("cancelled", "its time limit is over")
    assert made.control.closed == [("a/run", True, False)]
    assert {each["state"] for each in saved.steps["nodes"].values()} == {"cancelled"}


async def test_a_program_can_be_cancelled_while_a_call_waits_for_its_retry(world):
    rejection = RateLimitedError("in an hour", headers={"Retry-After": "3600"})
    made = await world(declare(node("a"), node("b")), {"a": [rejection], "b": [rejection]})
    await until(lambda: len(made.calls.made) == 2)
    made.execution.cancel("enough")
    saved = await made.end()
    assert (saved.state, saved.reason) == ("cancelled", "enough")


async def test_one_rejection_delays_unsent_calls(world):
    rejection = RateLimitedError("in an hour", headers={"Retry-After": "3600"})
    program = declare(node("first"), node("held"), node("after", "{{held.output}}"))
    made = await world(program, {"first": [rejection], "held": ["hold"]})
    await until(lambda: len(made.calls.made) == 2)
    made.calls.released.set()
    await until(lambda: made.saved().steps["tasks"].get("after"))
    await settle()
    assert sorted(task for task, _, _ in made.calls.made) == ["first", "held"]


async def test_a_pause_keeps_finished_calls_and_the_next_start_continues(world):
    nodes = [node("a"), node("b", "{{a.output}}{{c.output}}"), node("c")]
    made = await world(declare(*nodes), {"a": ["hold"], "c": ["hold"]})
    await until(lambda: made.calls.under_way == 2)
    made.execution.pause()
    made.calls.script["c"] = [UnavailableError("the server stops", code="call_stopped")]
    made.calls.released.set()
    saved = await made.end()
    assert (saved.state, saved.ended_at, made.control.closed) == ("running", None, [])
    assert {name: each["state"] for name, each in saved.steps["tasks"].items()} == {
        "a": "done",
        "c": "done",
        "b": "running",
    }
    again = await world(declare(*nodes))
    assert (await again.end()).state == "complete"
    assert again.calls.made == [("b", 2, ("a", "c"))]


async def test_failures_of_a_stopping_server_do_not_fail_the_program(world):
    stopped = UnavailableError("the server is stopping", code="call_stopped")
    made = await world(declare(node("a", retries=0)), {"a": [("hold", stopped)]})
    await until(lambda: made.calls.under_way)
    made.execution.pause()
    made.calls.released.set()
    saved = await made.end()
    assert saved.state == "running"
    assert saved.steps["tasks"]["a"]["state"] == "running"


async def test_a_program_ends_when_its_app_is_deleted(world):
    made = await world(declare(node("a"), node("b", "{{a.output}}")), {"a": ["hold"]})
    await until(lambda: made.calls.under_way)
    with made.sessions.begin() as session:
        session.delete(session.get(App, "a"))
    made.calls.released.set()
    assert await made.end() is None
    assert made.execution.run.state == "cancelled"
    assert made.control.closed == [("a/run", True, False)]


async def test_the_run_may_have_ended(world):
    made = await world(declare(node("a")))

    async def gone(run_id, **more):
        raise NotFoundError("there is no such interaction")

    made.control.close_interaction = gone
    assert (await made.end()).state == "complete"


async def test_during_a_database_outage_nothing_is_sent_or_lost(world, monkeypatch):
    apply, away = repository.apply, [True]

    def failing(session, changes):
        if away:
            raise OperationalError("away", {}, Exception())
        return apply(session, changes)

    made = await world(declare(node("a"), node("b", "{{a.output}}")), {"a": ["hold"]})
    await until(lambda: made.calls.under_way)
    monkeypatch.setattr(repository, "apply", failing)
    made.calls.released.set()
    await until(lambda: made.execution.run.nodes["a"].state == "done")
    await settle()
    assert [task for task, _, _ in made.calls.made] == ["a"]
    away.clear()
    assert (await made.end()).state == "complete"
    assert [task for task, _, _ in made.calls.made] == ["a", "b"]


async def test_a_model_not_served_yet_delays_only_its_own_calls(world):
    later = UnavailableError("soon", code="starting", headers={"Retry-After": "3600"})
    made = await world(declare(node("a"), node("b"), node("c", "{{b.output}}")), {"a": [later]})
    await until(lambda: made.execution.run.nodes["c"].state == "done")
    assert made.execution.run.nodes["a"].state == "running"


async def test_a_cancel_stops_calls_even_during_a_database_outage(world, monkeypatch):
    def failing(session, changes):
        raise OperationalError("away", {}, Exception())

    made = await world(declare(node("a"), node("b")), {"a": ["hold"], "b": ["hold"]})
    await until(lambda: made.calls.under_way == 2)
    with monkeypatch.context() as away:
        away.setattr(repository, "apply", failing)
        made.execution.cancel("enough")
        await until(lambda: made.control.closed)
        assert made.control.closed == [("a/run", True, False)]
        assert made.saved().state == "running"
    made.calls.released.set()
    saved = await made.end()
    assert (saved.state, saved.reason) == ("cancelled", "enough")
    assert made.control.closed == [("a/run", True, False)]
