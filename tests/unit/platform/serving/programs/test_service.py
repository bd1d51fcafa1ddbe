"""Test all programs of a server: bounds, ids, and a restart with programs of the last process."""

import asyncio

import pytest
from control_world import World
from program_calls import Calls, add_apps, database, declare, node
from until import until

from fairserve.interactions.programs.program import ProgramLimits, parse_program
from fairserve.platform.base.errors import ConflictError, RateLimitedError, UnavailableError
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.programs import ProgramStep
from fairserve.platform.fleet.models import Models
from fairserve.platform.serving.programs import repository
from fairserve.platform.serving.programs.repository import ProgramChange, ProgramKey, SavedProgram
from fairserve.platform.serving.programs.service import ProgramOptions, Programs
from fairserve.platform.serving.programs.task_calls import ProgramOwner


class Server:
    """Programs of apps ``a`` and ``b`` with real control and database."""

    def __init__(self, folder, script=(), **options):
        self.engine, self.sessions = database(folder)
        self.world = World()
        self.models = Models(lambda worker: True)
        self.models.set_expected(["m"])
        self.calls = Calls(dict(script))
        self.programs = Programs(
            self.sessions,
            self.world.control,
            self.models,
            self.calls,
            ProgramOptions(**options),
        )

    async def submit(self, run_id, *nodes, app="a", user="ann", size_bytes=10):
        owner = ProgramOwner(ProgramKey("t", app, run_id), user)
        declaration = declare(*(nodes or (node("one"),)))
        program = parse_program(declaration)
        return await self.programs.submit(owner, declaration, program, size_bytes)

    def saved(self, run_id, app="a"):
        return repository.find(self.sessions, ProgramKey("t", app, run_id))

    async def ended(self, run_id, app="a"):
        return await until(lambda: _if_ended(self.saved(run_id, app)))

    async def close(self):
        await self.programs.close(grace_s=0.0)
        await self.world.control.close()
        self.engine.dispose()


def _if_ended(saved):
    return saved if saved is not None and saved.ended_at else None


@pytest.fixture
async def make(tmp_path):
    made = []

    async def make(script=(), **options):
        if not made:
            engine, sessions = database(tmp_path)
            add_apps(sessions, "a", "b")
            engine.dispose()
        made.append(Server(tmp_path, script, **options))
        return made[-1]

    yield make
    for server in made:
        await server.close()


HOLD = {"one": ["hold"] * 9}


async def test_running_programs_of_an_app_are_bounded(make):
    server = await make(HOLD, max_live_per_app=2)
    await server.programs.start()
    await server.submit("1")
    await server.submit("2")
    with pytest.raises(RateLimitedError, match="2 live programs; allowed: 2") as rejected:
        await server.submit("3")
    assert rejected.value.headers["Retry-After"]
    assert server.saved("3") is None
    await server.submit("3", app="b")
    server.calls.released.set()
    await server.ended("1")
    await until(lambda: not server.programs.is_live(ProgramKey("t", "a", "1")))
    await server.submit("3")


@pytest.mark.parametrize(
    ("options", "size_bytes"),
    [({"max_live": 2, "tenant_share": 1}, 1), ({"max_bytes": 250, "tenant_share": 1}, 100)],
)
async def test_programs_of_a_server_are_bounded_by_number_and_size(make, options, size_bytes):
    server = await make(HOLD, **options)
    await server.programs.start()
    for run in "12":
        await server.submit(run, app="ab"[int(run) - 1], size_bytes=size_bytes)
    with pytest.raises(UnavailableError, match="too many programs"):
        await server.submit("3", size_bytes=size_bytes)
    assert server.saved("3") is None


async def test_concurrent_submissions_are_counted(make):
    server = await make(HOLD, max_live_per_app=3)
    await server.programs.start()
    answers = await asyncio.gather(
        *(server.submit(str(number)) for number in range(9)), return_exceptions=True
    )
    assert sum(isinstance(answer, RateLimitedError) for answer in answers) == 6
    again = await asyncio.gather(
        *(server.submit("same", app="b") for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(answer, ConflictError) for answer in again) == 4


async def test_the_id_of_a_run_of_calls_is_rejected(make):
    server = await make()
    await server.programs.start()
    await server.world.control.open_interaction("a/mine", "t", "a", "ann")
    with pytest.raises(ConflictError):
        await server.submit("mine")
    assert server.saved("mine") is None
    await server.submit("mine", app="b")


async def stopped_server(make, *runs, **nodes):
    """Return a server that stopped while a call of each of these runs was active."""
    server = await make(HOLD)
    await server.programs.start()
    for run in runs:
        await server.submit(run, node("one"), node("two", "after {{one.output}}"))
    await until(lambda: server.calls.under_way == len(runs))
    await server.close()


async def test_a_restart_continues_programs(make):
    await stopped_server(make, "1", "2")
    server = await make()
    await server.programs.start()
    for run in "12":
        assert (await server.ended(run)).state == "complete"
        view = await server.world.control.interaction(f"a/{run}")
        assert (view.state, view.user) == ("complete", "ann")
    assert sorted(server.calls.made) == [
        *[("one", 2, ())] * 2,
        *[("two", 1, ("one~2",))] * 2,
    ]


async def test_a_damaged_program_fails_without_affecting_others(make):
    await stopped_server(make, "1", "2")
    server = await make()
    with server.sessions.begin() as session:
        session.get(ProgramStep, ("t", "a", "1", "task", "one")).record = {"node": "nowhere"}
    await server.programs.start()
    damaged = await server.ended("1")
    assert (damaged.state, damaged.reason[:18]) == ("failed", "it could not go on")
    assert (await server.ended("2")).state == "complete"


async def test_programs_of_a_suspended_tenant_end(make):
    await stopped_server(make, "1")
    server = await make()
    with server.sessions.begin() as session:
        session.get(Tenant, "t").suspended_at = utc_now()
    await server.programs.start()
    ended = await server.ended("1")
    assert (ended.state, ended.reason) == ("cancelled", "its tenant is suspended")
    assert server.calls.made == []


async def test_programs_of_an_app_or_tenant_are_cancelled_from_any_thread(make):
    server = await make(HOLD)
    await server.programs.start()
    await server.submit("1")
    await server.submit("1", app="b")
    await until(lambda: server.calls.under_way == 2)
    await asyncio.to_thread(server.programs.cancel_of, "gone", app_id="a")
    server.calls.released.set()
    assert (await server.ended("1")).state == "cancelled"
    assert (await server.ended("1", "b")).state == "complete"


async def test_programs_of_a_user_are_cancelled_and_saved(make):
    server = await make(HOLD, cancel_wait_s=30.0)
    await server.programs.start()
    await server.submit("1")
    await server.submit("2", app="b")
    await server.submit("3", user="bob")
    await until(lambda: server.calls.under_way == 3)
    await server.programs.cancel_of_user("gone", "another tenant", "ann")
    assert server.programs.is_live(ProgramKey("t", "a", "1"))
    asyncio.get_running_loop().call_later(0.05, server.calls.released.set)
    await server.programs.cancel_of_user("gone", "t", "ann")
    for app, run in (("a", "1"), ("b", "2")):
        saved = server.saved(run, app)
        assert (saved.state, saved.reason) == ("cancelled", "gone")
    assert (await server.ended("3")).state == "complete"


async def test_time_passes_while_the_server_is_stopped(make):
    server = await make()
    old = SavedProgram(
        ProgramKey("t", "a", "old"),
        "ann",
        declare(node("one")),
        ProgramLimits(),
        "running",
        "",
        utc_now().replace(year=2020),
    )
    with server.sessions.begin() as session:
        repository.insert(session, old)
    await server.programs.start()
    ended = await server.ended("old")
    assert (ended.state, ended.reason) == ("cancelled", "its time limit is over")


async def test_the_view_of_an_ended_program_equals_that_of_the_running_one(make):
    server = await make()
    await server.programs.start()
    key = ProgramKey("t", "a", "1")
    events = []
    await server.submit("1", node("one"), node("two", "{{one.output}}!"))
    server.programs.watch(key, events.append, key.tenant)
    await server.ended("1")
    await until(lambda: not server.programs.is_live(key))
    view = await server.programs.view(key)
    assert events[-1] == view
    assert view.result == {"two": "x!"}
    assert await server.programs.view(key._replace(app="b")) is None


async def test_a_failure_outside_the_run_is_shown(make):
    server = await make()
    await server.programs.start()
    key = ProgramKey("t", "a", "1")
    await server.submit("1")
    await server.ended("1")
    await until(lambda: not server.programs.is_live(key))
    with server.sessions.begin() as session:
        change = ProgramChange(key, 1, state="failed", reason="the disk", ended_at=utc_now())
        repository.apply(session, [change])
    view = await server.programs.view(key)
    assert (view.state, view.reason) == ("failed", "the disk")


async def test_a_restored_run_has_its_calls_even_without_the_ledger(make):
    server = await make({"two": ["hold"]})
    await server.programs.start()
    await server.submit("1", node("one"), node("two", "{{one.output}}"))
    await until(lambda: len(server.calls.made) == 2)
    await server.close()
    again = await make({"two": ["hold"]})
    await again.programs.start()
    run = again.world.control.cell.dispatcher.tracker.get("a/1")
    assert (list(run.numbers), run.declared) == (["a/1/one"], True)
