"""The running fleet: what it tells pool and models, and that nothing is removed under its calls."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from until import until

from fairserve.platform.cluster.fleet import FleetPart
from fairserve.platform.cluster.running_fleet import RunningFleet
from fairserve.platform.cluster.worker_spec import WorkerSpec

A, B = WorkerSpec("a", "http://a"), WorkerSpec("b", "http://b")


class World:
    """A pool, models and control that only remember."""

    def __init__(self):
        self.told = []
        self.calls = {}
        self.asked = asyncio.Event()
        pool = SimpleNamespace(
            add=lambda spec: self.told.append(f"add {spec.url}"),
            drain=lambda worker_id: self.told.append(f"drain {worker_id}"),
            remove=lambda worker_id: self.told.append(f"remove {worker_id}"),
        )
        models = SimpleNamespace(
            set_fleet=lambda desired: None,
            worker_drains=lambda worker_id: None,
            worker_left=lambda worker_id: self.told.append(f"left {worker_id}"),
        )
        self.fleet = RunningFleet(pool, models, self.cluster, look_s=0)

    async def cluster(self):
        self.asked.set()
        return SimpleNamespace(
            workers=[SimpleNamespace(worker_id=w, calls=n) for w, n in self.calls.items()]
        )

    def news(self):
        told, self.told = self.told, []
        return told

    async def look(self):
        """Until control was asked twice: what the first answer led to is done then."""
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


async def test_a_worker_is_drained_before_it_goes(world):
    world.fleet.set_part("file", FleetPart(workers=(A, B)))
    assert world.news() == ["add http://a", "add http://b"]
    world.calls = {"a": 1, "b": 3}
    world.fleet.set_part("file", FleetPart(workers=(B,)))
    assert world.news() == ["drain a"]
    await world.look()
    assert world.news() == []
    world.calls = {"a": 0, "b": 3}
    assert await until(world.news) == ["remove a", "left a"]
    assert set(world.fleet.present) == {"b"}


async def test_an_answer_from_before_it_drained_removes_nobody(world):
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
    await world.look()
    await world.look()
    assert set(world.fleet.present) == {"a", "b"}
    world.calls = {}
    await until(lambda: not world.fleet.present)


async def test_a_changed_worker_drains_and_joins_at_its_new_place(world):
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    world.calls = {"a": 1}
    moved = WorkerSpec("a", "http://elsewhere")
    world.fleet.set_part("file", FleetPart(workers=(moved,)))
    await world.look()
    assert world.news() == ["add http://a", "drain a"]
    world.calls = {}
    assert await until(world.news) == ["remove a", "left a", "add http://elsewhere"]


async def test_a_worker_dropped_by_force_goes_at_once(world):
    world.fleet.set_part("api", FleetPart(workers=(A, B)))
    world.calls = {"a": 9, "b": 9}
    world.news()
    world.fleet.set_part("api", FleetPart(workers=(B,)), drop="a")
    assert world.news() == ["remove a", "left a"]


async def test_a_drained_worker_leaves_the_pool_and_stays_wanted(world):
    world.fleet.set_part("api", FleetPart(workers=(A,)))
    world.fleet.set_part("api", FleetPart(workers=(A,), drained=frozenset("a")))
    await until(lambda: "a" not in world.fleet.present)
    assert world.fleet.desired.workers["a"].drained
    world.fleet.set_part("api", FleetPart(workers=(A,)))
    assert world.news()[-1] == "add http://a"


async def test_sources_do_not_disturb_each_other(world):
    world.fleet.set_part("settings", FleetPart(workers=(A,)))
    world.fleet.set_part("api", FleetPart(workers=(B,)))
    world.news()
    world.fleet.set_part("file", FleetPart())
    assert world.news() == []
    assert set(world.fleet.without("api").workers) == {"a"}


async def test_another_thread_waits_until_its_change_holds(world):
    """The later change holds in the end, also if the earlier one is slow with what it has read."""
    stored = [A]
    has_read, go_on = threading.Event(), threading.Event()

    def slow():
        found = tuple(stored)
        has_read.set()
        assert go_on.wait(30)
        return FleetPart(workers=found)

    first = asyncio.create_task(asyncio.to_thread(world.fleet.replace_part, "api", slow))
    assert await asyncio.to_thread(has_read.wait, 30)
    stored.append(B)
    load = lambda: FleetPart(workers=tuple(stored))  # noqa: E731
    second = asyncio.create_task(asyncio.to_thread(world.fleet.replace_part, "api", load))
    await asyncio.wait({second}, timeout=0.2)
    go_on.set()
    await asyncio.gather(first, second)
    assert set(world.fleet.desired.workers) == {"a", "b"}


async def test_a_worker_that_the_pool_refuses_is_tried_again(world, caplog):
    add = world.fleet._pool.add

    def refuse(spec):
        raise ValueError("no such option")

    world.fleet._pool.add = refuse
    world.fleet.set_part("file", FleetPart(workers=(A,)))
    assert "worker a cannot be added: no such option" in caplog.text
    assert world.fleet.present == {}
    world.fleet._pool.add = add
    world.fleet.set_part("file", FleetPart(workers=(A, B)))
    assert world.news() == ["add http://a", "add http://b"]


async def test_a_failure_reaches_the_thread_that_asked(world):
    def load():
        raise ValueError("the database is gone")

    with pytest.raises(ValueError, match="gone"):
        await asyncio.to_thread(world.fleet.replace_part, "api", load)
