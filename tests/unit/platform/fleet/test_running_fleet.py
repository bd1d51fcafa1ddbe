"""The running fleet notifies pool and models, and removes no worker with calls."""

import asyncio
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from until import settle, until

from fairserve.platform.fleet.fleet import DrainNote, FleetPart, StoredFleet
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.worker_spec import WorkerSpec

A, B = WorkerSpec("a", "http://a"), WorkerSpec("b", "http://b")
NOTE = DrainNote("sk-fs-a-1", datetime(2026, 3, 1, tzinfo=UTC))


def stored(*workers, drained=""):
    return StoredFleet(FleetPart(workers=workers), dict.fromkeys(drained.split(), NOTE))


class World:
    """A pool, models and control that only record their calls."""

    def __init__(self, **options):
        self.notices = []
        self.calls = {}
        self.busy = set()
        self.asked = asyncio.Event()
        pool = SimpleNamespace(
            add=lambda spec: self.notices.append(f"add {spec.url}"),
            drain=lambda worker_id: self.notices.append(f"drain {worker_id}"),
            undrain=self.undrain,
            remove=lambda worker_id: self.notices.append(f"remove {worker_id}"),
            busy=lambda worker_id: worker_id in self.busy,
        )
        models = SimpleNamespace(
            set_fleet=lambda desired: None,
            worker_drains=lambda worker_id: None,
            worker_undrains=lambda worker_id: self.notices.append(f"models: undrained {worker_id}"),
            worker_left=lambda worker_id: self.notices.append(f"left {worker_id}"),
        )
        self.fleet = RunningFleet(pool, models, self.cluster, check_s=0, **options)
        self.away = set()

    def undrain(self, worker_id):
        self.notices.append(f"undrain {worker_id}")
        return worker_id not in self.away

    async def cluster(self):
        self.asked.set()
        return SimpleNamespace(
            workers=[SimpleNamespace(worker_id=w, calls=n) for w, n in self.calls.items()]
        )

    def new_notices(self):
        notices, self.notices = self.notices, []
        return notices

    async def wait_without_check(self):
        """Wait long enough for a check that would be wrong, as no worker drains."""
        await settle()

    async def wait_for_checks(self):
        """Wait until control was asked twice: the effect of the first answer is then complete."""
        for _ in range(2):
            self.asked.clear()
            await self.asked.wait()


@pytest.fixture
async def world():
    world = World()
    task = asyncio.create_task(world.fleet.run())
    yield world
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_is_drained_before_its_removal(world):
    world.fleet.set_part("file", FleetPart(workers=(A, B)))
    assert world.new_notices() == ["add http://a", "add http://b"]
    world.calls = {"a": 1, "b": 3}
    world.fleet.set_part("file", FleetPart(workers=(B,)))
    assert world.new_notices() == ["drain a"]
    await world.wait_for_checks()
    assert world.new_notices() == []
    world.calls = {"a": 0, "b": 3}
    assert await until(world.new_notices) == ["remove a", "left a"]
    assert set(world.fleet.present) == {"b"}


async def test_an_answer_from_before_the_drain_removes_no_worker(world):
    world.fleet.set_part("file", FleetPart(workers=(A, B)))
    world.calls = {"a": 1, "b": 0}
    world.fleet.set_part("file", FleetPart(workers=(B,)))
    answered = world.fleet._cluster

    async def slow():
        answer = await answered()
        if world.fleet.present["b"].draining:
            return answer
        world.calls["b"] = 1  # it begins a call, then drains; the answer does not know
        world.fleet.set_part("file", FleetPart())
        return answer

    world.fleet._cluster = slow
    await world.wait_for_checks()
    await world.wait_for_checks()
    assert set(world.fleet.present) == {"a", "b"}
    world.calls = {}
    await until(lambda: not world.fleet.present)


async def test_a_changed_worker_drains_and_joins_again(world):
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    world.calls = {"a": 1}
    moved = WorkerSpec("a", "http://elsewhere")
    world.fleet.set_part("file", FleetPart(workers=(moved,)))
    await world.wait_for_checks()
    assert world.new_notices() == ["add http://a", "drain a"]
    world.calls = {}
    assert await until(world.new_notices) == ["remove a", "left a", "add http://elsewhere"]


async def test_a_worker_dropped_by_force_is_removed_immediately(world):
    world.fleet.set_stored(stored(A, B))
    world.calls = {"a": 9, "b": 9}
    world.new_notices()
    world.fleet.set_stored(stored(B), drop="a")
    assert world.new_notices() == ["remove a", "left a"]


@pytest.mark.parametrize("source", ["settings", "api", "file"])
async def test_a_drained_worker_leaves_the_pool_and_stays_wanted(world, source):
    """The drained worker is the only one of its model, which must remain."""
    workers = (A,) if source == "api" else ()
    if source != "api":
        world.fleet.set_part(source, FleetPart(workers=(A,)))
    world.fleet.set_stored(stored(*workers))
    world.fleet.set_stored(stored(*workers, drained="a"))
    await until(lambda: "a" not in world.fleet.present)
    assert world.fleet.desired.workers["a"].drain == NOTE
    assert world.new_notices() == ["add http://a", "drain a", "remove a"]
    world.fleet.set_stored(stored(*workers))
    assert world.new_notices() == ["add http://a"]


async def test_changes_of_the_file_keep_a_drain(world):
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    world.fleet.set_stored(stored(drained="a"))
    await until(lambda: "a" not in world.fleet.present)
    world.new_notices()
    moved = WorkerSpec("a", "http://elsewhere")
    world.fleet.set_part("file", FleetPart(workers=(moved, B)))
    assert world.new_notices() == ["add http://b"]
    world.fleet.set_part("file", FleetPart(workers=(B,)))
    assert world.new_notices() == ["left a"], "now it is none of its model's any more"
    world.fleet.set_part("file", FleetPart(workers=(A, B)))
    assert world.new_notices() == []
    assert "a" in world.fleet.without("api").workers
    assert world.fleet.without("api").workers["a"].drained


async def test_an_undrain_works_while_calls_run(world):
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    world.calls = {"a": 2}
    world.fleet.set_stored(stored(drained="a"))
    await world.wait_for_checks()
    world.fleet.set_stored(stored())
    await world.wait_without_check()
    notices = ["undrain a", "models: undrained a"]
    assert world.new_notices() == ["add http://a", "drain a", *notices]
    assert not world.fleet.present["a"].draining
    world.fleet.set_stored(stored(drained="a"))
    world.away = {"a"}
    world.fleet.set_stored(stored())
    assert world.new_notices() == ["drain a", "undrain a"], "it reports its model when it joins"


async def test_calls_that_control_does_not_count_keep_a_worker(world):
    """These calls are from before a temporary loss of the worker."""
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    world.busy = {"a"}
    world.fleet.set_stored(stored(drained="a"))
    await world.wait_for_checks()
    assert world.new_notices() == ["add http://a", "drain a"]
    world.busy = set()
    assert await until(world.new_notices) == ["remove a"]


async def test_an_embedded_worker_is_drained_and_its_process_kept(world):
    world.fleet.set_part("embedded", FleetPart(workers=(WorkerSpec("w0", ""),)))
    assert world.new_notices() == []
    world.fleet.embedded_ready("w0", "http://127.0.0.1:1")
    world.fleet.set_stored(stored())
    assert world.new_notices() == ["add http://127.0.0.1:1"]
    world.calls = {"w0": 1}
    world.fleet.set_stored(stored(drained="w0"))
    await world.wait_for_checks()
    assert not world.fleet.present["w0"].idle
    world.calls = {}
    await until(lambda: world.fleet.present["w0"].idle)
    world.fleet.embedded_lost("w0")
    world.fleet.embedded_ready("w0", "http://127.0.0.1:2")
    notices = ["drain w0", "remove w0", "add http://127.0.0.1:2", "drain w0"]
    assert world.new_notices() == notices, "it stays drained"
    await until(lambda: world.fleet.present["w0"].idle)
    world.fleet.set_stored(stored())
    assert world.new_notices() == ["undrain w0", "models: undrained w0"]
    assert world.fleet.present["w0"].spec.url == "http://127.0.0.1:2"


async def test_drains_apply_from_the_start(caplog):
    world = World(drains={"w0": NOTE, "a": NOTE})
    assert "drained workers, which get no calls: w0, a" in caplog.text
    world.fleet.set_part("embedded", FleetPart(workers=(WorkerSpec("w0", ""),)))
    world.fleet.set_part("settings", FleetPart(workers=(A, B)))
    world.fleet.embedded_ready("w0", "http://127.0.0.1:1")
    assert world.new_notices() == ["add http://b", "add http://127.0.0.1:1", "drain w0"]


async def test_sources_do_not_disturb_each_other(world):
    world.fleet.set_part("settings", FleetPart(workers=(A,)))
    world.fleet.set_stored(stored(B))
    world.new_notices()
    world.fleet.set_part("file", FleetPart())
    assert world.new_notices() == []
    assert set(world.fleet.without("api").workers) == {"a"}


async def test_another_thread_waits_until_its_change_is_applied(world):
    """The later change persists, even if the earlier one is slow to apply what it read."""
    found = [A]
    has_read, go_on = threading.Event(), threading.Event()

    def slow():
        read = tuple(found)
        has_read.set()
        assert go_on.wait(30)
        return stored(*read)

    first = asyncio.create_task(asyncio.to_thread(world.fleet.reload, slow))
    assert await asyncio.to_thread(has_read.wait, 30)
    found.append(B)
    second = asyncio.create_task(asyncio.to_thread(world.fleet.reload, lambda: stored(*found)))
    await asyncio.wait({second}, timeout=0.2)
    go_on.set()
    await asyncio.gather(first, second)
    assert set(world.fleet.desired.workers) == {"a", "b"}


async def test_a_worker_rejected_by_the_pool_is_retried(world, caplog):
    add = world.fleet._pool.add

    def reject(spec):
        raise ValueError("no such option")

    world.fleet._pool.add = reject
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    assert "worker a cannot be added: no such option" in caplog.text
    assert world.fleet.present == {}
    world.fleet._pool.add = add
    world.fleet.set_part("file", FleetPart(workers=(A, B)))
    assert world.new_notices() == ["add http://a", "add http://b"]


async def test_a_failure_is_raised_in_the_requesting_thread(world):
    def load():
        raise ValueError("the database is gone")

    with pytest.raises(ValueError, match="gone"):
        await asyncio.to_thread(world.fleet.reload, load)
