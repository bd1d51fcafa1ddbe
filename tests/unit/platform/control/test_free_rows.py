"""Rows that cost a tenant nothing are bounded; rows of accepted calls are not."""

import pytest

from fairserve.platform.base.errors import RateLimitedError, UnavailableError
from fairserve.platform.control import free_rows
from fairserve.platform.control.free_rows import FreeRows


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(free_rows, "MOST_ROWS", 10)
    monkeypatch.setattr(free_rows, "ROWS_PER_HOUR", 3600)


@pytest.fixture
def full(make_world):
    """Return a world in which every further call of tenant t is rejected."""

    async def make():
        world = make_world(max_queued_calls=1, tenant_share=1, user_share=1)
        for number in range(3):
            await world.submitted(f"c{number}", run=f"r{number}")
        return world

    return make


async def reject(world, number, **more):
    with pytest.raises(UnavailableError, match="waiting already"):
        await world.submit(f"x{number}", run=f"x{number}", **more)


def refused(world):
    return [row for row in world.journal.rows() if row["outcome"] == "refused"]


async def test_rejected_calls_of_a_tenant_have_a_bounded_number_of_rows(full):
    world = await full()
    for number in range(30):
        await reject(world, number)
    assert len(refused(world)) == 10
    await reject(world, 99, tenant="other", user="v")
    assert len(refused(world)) == 11, "another tenant has rows of its own"
    world.pass_time(0.5)
    await reject(world, 100)
    assert len(refused(world)) == 11
    world.pass_time(0.6)
    await reject(world, 101)
    await reject(world, 102)
    assert len(refused(world)) == 12, "one a second"


async def test_accepted_calls_have_a_row_each_whatever_was_rejected(full):
    world = await full()
    for number in range(15):
        await reject(world, number)
    world.pass_time(0.1)
    await world.control.drain(0)
    ended = [row for row in world.journal.rows() if row["outcome"] != "refused"]
    assert len(ended) == 3


async def test_runs_without_a_call_are_bounded_and_those_with_calls_are_not(make_world):
    world = make_world()
    for number in range(10):
        await world.control.open_interaction(f"app/{number}", "t", "app", "u")
        await world.control.close_interaction(f"app/{number}", cancel=True)
    with pytest.raises(RateLimitedError, match="allowed: 3,600 an hour") as raised:
        await world.control.open_interaction("app/more", "t", "app", "v")
    assert (raised.value.code, raised.value.headers["Retry-After"]) == ("too_many_openings", "1")
    await world.control.open_interaction("other/1", "other", "other", "u")
    grant = await world.submit("c1", run="app/with-a-call")
    await world.release(grant)
    world.pass_time(1.1)
    await world.control.open_interaction("app/more", "t", "app", "v")


def test_the_number_of_buckets_is_bounded(monkeypatch):
    monkeypatch.setattr(free_rows, "MAX_TENANTS", 3)
    rows = FreeRows()
    for number in range(9):
        rows.take(f"t{number}", 0.0)
    assert list(rows._buckets) == ["t6", "t7", "t8"]
