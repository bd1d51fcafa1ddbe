"""Control around the real dispatcher: grants, exactly one row per call, leases, waits, draining."""

import asyncio
from dataclasses import dataclass, field

import pytest

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profile import DEFAULT_PROFILE
from fairserve.platform.control.lifecycle import ControlOptions
from fairserve.platform.control.messages import Cancel, Grant, Progress, RefuseCall, Release, Submit
from fairserve.platform.control.service import ControlService
from fairserve.platform.errors import (
    ConflictError,
    NotFoundError,
    UnavailableError,
    UnprocessableError,
)
from fairserve.platform.journal.journal import JournalUnavailableError
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits


@dataclass
class MemoryJournal:
    """A journal without a disk; ``held`` calls are not durable yet, ``broken`` ones never."""

    entries: list = field(default_factory=list)
    broken: bool = False
    hold: asyncio.Event | None = None

    def check(self):
        pass

    def append(self, kind, key, data):
        self.entries.append((kind, key, data))
        return len(self.entries)

    async def durable(self, sequence):
        if self.hold is not None:
            await self.hold.wait()
        if self.broken:
            raise JournalUnavailableError("disk full")

    def rows(self):
        return [data for kind, _, data in self.entries if kind == "closed"]

    def row(self, record_id):
        rows = [row for row in self.rows() if row["call_id"] == record_id]
        assert len(rows) == 1, f"{record_id} has {len(rows)} rows"
        return rows[0]


class World:
    """Control, its journal, a clock that stands still, and short ways to use them."""

    def __init__(self, system="fairserve", capacity=1000, **options):
        self.now_s = 100.0
        self.journal = MemoryJournal()
        self.control = ControlService(
            SYSTEMS[system],
            self.journal,
            ControlOptions(**options),
            clock=lambda: self.now_s,
            wall=lambda: 1_000_000.0 + self.now_s,
        )
        self.control.start()
        self.cancelled = []
        for worker in ("w0", "w1"):
            self.control.post(ev.WorkerJoined(worker, capacity))

    def submit(self, name="c1", *, run="run", user="u", **more):
        values = {
            "input_tokens": 100,
            "system_tokens": 0,
            "max_output_tokens": 20,
            "tenant": "t",
            "app": "app",
            "model": "m",
            **more,
        }
        submit = {
            key: values.pop(key) for key in ("fingerprint", "user_agent_retry") if key in values
        }
        call = Call(call_id=f"app/{run}/{name}", interaction_id=f"app/{run}", user=user, **values)
        message = Submit(call, record_id=f"row-{run}-{name}", **submit)
        return self.control.submit(message, self.cancelled.append)

    def submitted(self, name="c1", **more):
        return asyncio.create_task(self.submit(name, **more))

    async def release(self, grant, outcome="completed", output=5, **more):
        usage = TokenUsage(100, 0, 0, output)
        return await self.control.release(Release(grant.call_id, outcome, usage, **more))

    def pass_time(self, seconds):
        self.now_s += seconds
        self.control.tick()


@pytest.fixture
async def world():
    made = World()
    yield made
    await made.control.close()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_is_granted_and_makes_one_row(world):
    grant = await world.submit()
    assert isinstance(grant, Grant)
    assert (grant.stage, grant.worker_id) == (1, "w0")
    world.now_s += 2
    assert world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 32, 3), True))
    world.now_s += 1
    usage = TokenUsage(100, 0, 32, 5)
    await world.control.release(Release(grant.call_id, "completed", usage, ttft_s=2.5))
    row = world.journal.row("row-run-c1")
    assert row["outcome"] == "completed"
    assert (row["input_tokens"], row["cached_tokens"], row["extend_tokens"]) == (100, 32, 68)
    assert (row["output_tokens"], row["service"], row["ttft_s"]) == (5, 110.0, 2.5)
    assert (row["queue_delay_s"], row["duration_s"], row["wasted"]) == (2.0, 3.0, False)
    assert (row["interaction_id"], row["worker"]) == ("run", "w0")


async def test_the_journal_comes_before_the_grant(world):
    world.journal.hold = asyncio.Event()
    waiting = world.submitted()
    await settle()
    assert [kind for kind, _, _ in world.journal.entries] == ["accepted"]
    assert not waiting.done()
    world.journal.hold.set()
    assert isinstance(await waiting, Grant)


async def test_a_call_that_cannot_be_journaled_is_withdrawn_without_a_row(world):
    world.journal.broken = True
    with pytest.raises(UnavailableError, match="disk full"):
        await world.submit()
    assert world.journal.rows() == []
    assert (await world.control.cluster()).running_calls == 0


async def test_a_queued_call_waits_for_room(world):
    grants = [await world.submit(f"c{n}", run=f"r{n}") for n in range(2)]
    waiting = world.submitted("c9", run="r9")
    await settle()
    assert not waiting.done(), "both feed windows are full"
    world.control.progress(Progress(grants[0].call_id, True, TokenUsage(100)))
    assert (await waiting).worker_id == grants[0].worker_id


async def test_releasing_twice_makes_one_row(world):
    grant = await world.submit()
    await world.release(grant)
    await world.release(grant, "failed")
    assert world.journal.row("row-run-c1")["outcome"] == "completed"


async def test_a_submit_that_is_cancelled_withdraws_a_queued_call(world):
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = world.submitted("c9", run="r9")
    await settle()
    waiting.cancel()
    await settle()
    row = world.journal.row("row-r9-c9")
    assert (row["outcome"], row["wasted"], row["output_tokens"]) == ("cancelled", False, 0)
    assert (await world.control.cluster()).queued_calls == 0


async def test_a_submit_that_is_cancelled_between_grant_and_return_leaves_nothing_running(world):
    world.journal.hold = asyncio.Event()
    waiting = world.submitted()
    await settle()
    waiting.cancel()  # granted in control, but the journal has not synced
    await settle()
    assert world.journal.row("row-run-c1")["outcome"] == "cancelled"
    assert (await world.control.cluster()).running_calls == 0


async def test_a_call_that_waited_too_long_is_expired():
    world = World(max_queue_wait_s=10)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = world.submitted("c9", run="r9")
    await settle()
    world.pass_time(9.9)
    await settle()
    assert not waiting.done()
    world.pass_time(0.2)
    with pytest.raises(UnavailableError, match="within 10 s") as raised:
        await waiting
    assert raised.value.headers["Retry-After"]
    assert world.journal.row("row-r9-c9")["outcome"] == "expired"
    await world.control.close()


async def test_a_lease_without_progress_ends_by_itself():
    world = World(lease_s=10)
    grant = await world.submit()
    world.pass_time(9)
    assert world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 2)))
    world.pass_time(9)
    assert not world.journal.rows()
    world.pass_time(1.1)
    row = world.journal.row("row-run-c1")
    assert (row["outcome"], row["output_tokens"], row["wasted"]) == ("failed", 2, True)
    assert [cancel.call_id for cancel in world.cancelled] == [grant.call_id]
    assert not world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 3)))
    assert await world.release(grant) is None
    assert len(world.journal.rows()) == 1
    await world.control.close()


async def test_a_full_queue_refuses_and_records():
    world = World(max_queued_calls=1)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = world.submitted("c8", run="r8")
    await settle()
    with pytest.raises(UnavailableError) as raised:
        await world.submit("c9", run="r9")
    assert raised.value.code == "queue_full"
    row = world.journal.row("row-r9-c9")
    assert (row["outcome"], row["refusal_reason"]) == ("refused", "queue_full")
    waiting.cancel()
    await settle()
    await world.control.close()


async def test_a_failed_worker_is_replaced_by_another(world):
    grant = await world.submit()
    again = await world.control.release(
        Release(grant.call_id, "failed", TokenUsage(), retry_on_another_worker=True)
    )
    assert again.call_id == grant.call_id
    assert again.worker_id != grant.worker_id
    await world.release(again)
    assert world.journal.row("row-run-c1")["worker"] == again.worker_id


async def test_a_stray_release_does_not_end_a_call_that_waits_again(world):
    grant = await world.submit("c1", run="r1")
    for worker in ("w0", "w1"):
        world.control.post(ev.WorkerDraining(worker))
    message = Release(grant.call_id, "failed", TokenUsage(), retry_on_another_worker=True)
    again = asyncio.create_task(world.control.release(message))
    await settle()
    assert not again.done(), "no worker takes calls"
    await world.release(grant)
    assert not world.journal.rows()
    world.control.post(ev.WorkerJoined("w2", 1000))
    assert (await again).worker_id == "w2"


async def test_a_refusal_has_a_row_with_its_reason():
    world = World("rpm-1")
    grant = await world.submit("c1")
    await world.release(grant)
    refused = await world.submit("c2")
    assert isinstance(refused, RefuseCall)
    assert refused.mid_run
    row = world.journal.row("row-run-c2")
    assert (row["outcome"], row["refusal_reason"]) == ("refused", "rpm_user_limit")
    assert (row["refusal_limit"], row["refusal_count"], row["mid_run"]) == (1, 2, True)
    await world.control.close()


@pytest.mark.parametrize(
    ("call", "error", "code"),
    [
        ({"name": "c2", "parents": ("app/run/nope",)}, UnprocessableError, "unknown_parent"),
        ({"name": "c2", "parents": ("app/run/c2",)}, ConflictError, "call_cycle"),
        ({"name": "c1"}, ConflictError, "duplicate_call"),
        ({"name": "c2", "user": "other"}, NotFoundError, "interaction_not_found"),
    ],
)
async def test_a_call_that_does_not_fit_its_run_changes_nothing(world, call, error, code):
    await world.release(await world.submit("c1"))
    with pytest.raises(error) as raised:
        await world.submit(**call)
    assert raised.value.code == code
    assert "app/" not in raised.value.message, "the client's ids, not ours"
    assert "run/" not in raised.value.message
    assert len(world.journal.rows()) == 1


async def test_a_cancelled_run_stops_queued_and_running_calls(world):
    grant = await world.submit("c1", run="r1")
    await world.submit("c2", run="r2")
    waiting = world.submitted("c3", run="r1", parents=())
    await settle()
    await world.control.close_interaction("app/r1", cancel=True)
    with pytest.raises(UnavailableError, match="interaction was cancelled"):
        await waiting
    assert world.journal.row("row-r1-c3")["outcome"] == "cancelled"
    assert [cancel.call_id for cancel in world.cancelled] == [grant.call_id]
    await world.release(grant, "cancelled")
    runs = [data for kind, _, data in world.journal.entries if kind == "interaction"]
    assert [(run["interaction_id"], run["state"], run["calls"]) for run in runs] == [
        ("r1", "cancelled", 2)
    ]
    with pytest.raises(ConflictError):
        await world.submit("c4", run="r1")


async def test_an_open_run_is_listed_until_it_is_closed(world):
    await world.control.open_interaction("app/r", "t", "app", "u")
    assert [view.state for view in await world.control.interactions("app", 10)] == ["open"]
    assert await world.control.interactions("other", 10) == []
    await world.release(await world.submit("c1", run="r"))
    view = await world.control.interaction("app/r")
    assert (view.state, view.calls, view.live_calls, view.tokens) == ("under_way", 1, 0, 105)
    await world.control.close_interaction("app/r", cancel=False)
    assert await world.control.interactions("app", 10) == []
    view = await world.control.interaction("app/r")  # until the ledger surely has it
    assert (view.state, view.calls, view.live_calls, view.tokens) == ("complete", 1, 0, 105)
    assert view.ended_at is not None


async def test_draining_takes_nothing_new_and_waits(world):
    grant = await world.submit("c1")
    draining = asyncio.create_task(world.control.drain(60))
    await settle()
    with pytest.raises(UnavailableError) as raised:
        await world.submit("c2")
    assert raised.value.code == "draining"
    assert not draining.done()
    await world.release(grant)
    await draining


async def test_draining_ends_what_does_not_end(world):
    grant = await world.submit("c1", run="r1")
    await world.submit("c2", run="r2")
    waiting = world.submitted("c3", run="r3")
    await settle()
    await world.control.drain(0)
    with pytest.raises(UnavailableError):
        await waiting
    assert {row["outcome"] for row in world.journal.rows()} == {"failed"}
    assert len(world.journal.rows()) == 3
    assert grant.call_id in [cancel.call_id for cancel in world.cancelled]


async def test_the_attempt_that_a_library_repeats_is_not_charged(world):
    first = await world.submit("c1", fingerprint="same")
    await world.release(first, "cancelled")
    second = await world.submit("c2", fingerprint="same", user_agent_retry=True)
    await world.release(second, delivered=True)
    charged = {row["call_id"]: row["charged"] for row in world.journal.rows()}
    assert charged == {"row-run-c1": False, "row-run-c2": True}


async def test_an_attempt_that_delivered_is_charged_though_it_is_repeated(world):
    first = await world.submit("c1", fingerprint="same")
    await world.release(first, "cancelled", delivered=True)
    await world.release(await world.submit("c2", fingerprint="same", user_agent_retry=True))
    assert all(row["charged"] for row in world.journal.rows())


async def test_an_attempt_that_still_runs_is_not_charged_if_it_delivers_nothing(world):
    first = await world.submit("c1", fingerprint="same", run="r1")
    second = await world.submit("c2", fingerprint="same", run="r2", user_agent_retry=True)
    await world.release(first, "cancelled")
    await world.release(second, delivered=True)
    assert world.journal.row("row-r1-c1")["charged"] is False
    assert world.journal.row("row-r2-c2")["charged"] is True


async def test_an_attempt_that_still_runs_is_charged_if_it_delivers_after_all(world):
    first = await world.submit("c1", fingerprint="same", run="r1")
    await world.submit("c2", fingerprint="same", run="r2", user_agent_retry=True)
    await world.release(first, delivered=True)
    assert world.journal.row("row-r1-c1")["charged"] is True


async def test_limits_are_told_as_the_throttle_counts(world):
    world.control.post(ev.AppChanged("app", DEFAULT_PROFILE, Limits(user_rpm=3)))
    assert world.control.limit_use("t", "app", "u").remaining == 3
    await world.submit("c1", run="r1")
    world.now_s += 10
    view = world.control.limit_use("t", "app", "u")
    assert (view.limit, view.remaining, view.reset_s) == (3, 2, 50.0)
    assert world.control.limit_use("t", "app", "someone else").remaining == 3
    assert world.control.limit_use("t", "app without limits", "u") is None


@pytest.mark.parametrize("system", ["fcfs", "fs-wi", "d2lpm", "rpm-20", "fairserve"])
async def test_the_system_changes_while_calls_run_and_wait(world, system):
    running = [await world.submit(f"c{n}", run=f"r{n}") for n in range(2)]
    waiting = [world.submitted(f"q{n}", run=f"q{n}") for n in range(3)]
    await settle()
    await asyncio.to_thread(world.control.apply_throttling, system, {"immunity_factor": 5.0})
    assert (await world.control.cluster()).system == system
    for grant in running:
        await world.release(grant)
    for task in waiting:
        await world.release(await task)
    # And it goes on from there, with workers that leave and calls that come.
    world.control.post(ev.WorkerLost("w0"))
    await world.release(await world.submit("later", run="later"))
    assert len(world.journal.rows()) == 6
    assert {row["outcome"] for row in world.journal.rows()} == {"completed"}


async def test_a_wrong_parameter_changes_nothing(world):
    with pytest.raises(ValueError, match="unknown option"):
        world.control.apply_throttling("fcfs", {"nonsense": 1})
    with pytest.raises(ValueError, match="nonsense"):
        world.control.apply_throttling("fairserve", {"feeder.nonsense": 1})
    assert (await world.control.cluster()).system == "fairserve"


async def test_a_client_that_leaves_a_granted_call_is_recorded_with_its_usage(world):
    grant = await world.submit()
    world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 7)))
    world.control.cancel(Cancel(grant.call_id))
    row = world.journal.row("row-run-c1")
    assert (row["outcome"], row["output_tokens"], row["wasted"]) == ("cancelled", 7, True)


@pytest.mark.parametrize("levels", ["user", "tenant > app > user"])
async def test_levels_change_while_calls_run_and_wait(levels):
    world = World(capacity=130)
    running = await world.submit("c1", run="r1")
    assert running.client_id == "t/u"
    other = await world.submit("c2", run="r2")
    waiting = [world.submitted(f"c{n}", run=f"r{n}", user=f"u{n % 2}") for n in range(3, 7)]
    await settle()
    assert not any(task.done() for task in waiting)
    world.control.apply_throttling("fairserve", {"levels": levels})
    with pytest.raises(ValueError, match="levels is 'team'"):
        world.control.apply_throttling("fairserve", {"levels": "team"})
    world.control.apply_throttling("fairserve", {"levels": levels, "router.we": 2.0})
    await world.release(running)
    await world.release(other)
    prefix = "t%2Fu" if levels == "user" else "t/app/u"
    while waiting:
        await settle()
        granted = [task for task in waiting if task.done()]
        assert granted, "nothing stalls"
        for task in granted:
            waiting.remove(task)
            assert task.result().client_id.startswith(prefix)
            await world.release(task.result())
    await world.control.close()
