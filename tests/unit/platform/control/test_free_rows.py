"""Rows of calls and runs that used nothing are bounded and count each of them; others are not."""

import pytest

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control import free_rows
from fairserve.platform.control.free_rows import FreeRows
from fairserve.platform.control.messages import Release


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


async def fail(world, number, usage=TokenUsage(0, 0, 0, 0), **more):
    """End an accepted call as its worker's own 4xx does, with this usage."""
    grant = await world.submit(f"f{number}", run=f"f{number}", **more)
    await world.control.release(Release(grant.call_id, "failed", usage, error="bad field"))


def last_rows(world, kind="closed"):
    """Return the rows as the database has them: the last entry of each id."""
    if kind == "closed":
        return list({row["call_id"]: row for row in world.journal.rows()}.values())
    runs = [data for entry, _, data in world.journal.entries if entry == kind]
    return list({row["row_id"] or row["interaction_id"]: row for row in runs}.values())


def calls_in(rows):
    return sum(row["shared_by"] or 1 for row in rows)


async def test_rejected_calls_share_a_row_beyond_the_bucket_and_each_is_counted(full):
    world = await full()
    for number in range(30):
        await reject(world, number, user=f"u{number}")
    rows = last_rows(world)
    assert (len(rows), calls_in(rows)) == (11, 30)
    (shared,) = [row for row in rows if row["shared_by"]]
    assert (shared["shared_by"], shared["outcome"]) == (20, "refused")
    assert (shared["refusal_reason"], shared["tenant"]) == ("queue_full", "t")
    assert (shared["user"], shared["interaction_id"]) == ("", "")
    await reject(world, 99, tenant="other", user="v")
    assert len(last_rows(world)) == 12, "another tenant has rows of its own"
    world.pass_time(0.5)
    await reject(world, 100)
    assert len(last_rows(world)) == 12
    world.pass_time(0.6)
    await reject(world, 101)
    await reject(world, 102)
    assert len(last_rows(world)) == 13, "one a second"
    assert calls_in(last_rows(world)) == 34


async def test_accepted_calls_that_their_worker_rejects_share_rows_and_leave_the_journal(
    make_world,
):
    world = make_world()
    for number in range(40):
        await fail(world, number)
    rows = last_rows(world)
    assert len(rows) <= 11
    assert calls_in(rows) == 40
    accepted = {key for kind, key, _ in world.journal.entries if kind == "accepted"}
    closed = {key for kind, key, _ in world.journal.entries if kind == "closed"}
    assert accepted == closed, "a restart finds no call open"


async def test_runs_without_a_token_share_rows_whether_they_have_calls_or_none(make_world):
    world = make_world()
    for number in range(20):
        await fail(world, number)
        await world.control.open_interaction(f"app/{number}", "t", "app", "u")
        await world.control.close_interaction(f"app/{number}", cancel=True)
    world.pass_time(7200.0)  # the runs of single calls have idled to their end
    rows = last_rows(world, "interaction")
    assert calls_in(rows) == 40
    assert sum(row["calls"] for row in rows) == 20
    assert len(rows) < 30


async def test_what_used_something_has_a_row_of_its_own_whatever_else_shares_rows(make_world):
    world = make_world()
    for number in range(20):
        await fail(world, number)
    before = len(last_rows(world))
    for number in range(20, 30):
        await fail(world, number, TokenUsage(100, 0, 0, 1))
    rows = last_rows(world)[before:]
    assert len(rows) == 10
    assert not any(row["shared_by"] for row in rows)


async def test_calls_of_different_quarter_hours_share_no_row(make_world):
    world = make_world()
    for quarter in range(3):
        for number in range(15):
            await fail(world, f"{quarter}-{number}")
        world.pass_time(900.0)
    shared = [row for row in last_rows(world) if row["shared_by"]]
    assert len({row["accepted_at"] // 900 for row in shared}) == len(shared) == 3


async def test_calls_of_different_service_tiers_share_no_row(make_world):
    world = make_world()
    for number in range(16):
        await fail(world, number, background=number % 2 == 1)
    shared = [row for row in last_rows(world) if row["shared_by"]]
    assert {row["service_tier"]: row["shared_by"] for row in shared} == {"default": 3, "flex": 3}


async def test_an_attempt_that_shares_a_row_is_not_waived_by_its_repetition(make_world):
    world = make_world()
    for number in range(15):
        await fail(world, number, fingerprint="same")
    await fail(world, "again", fingerprint="same", user_agent_retry=True)
    rows = last_rows(world)
    assert calls_in(rows) == 16


def test_the_number_of_buckets_is_bounded(monkeypatch):
    monkeypatch.setattr(free_rows, "MAX_TENANTS", 3)
    rows = FreeRows()
    for number in range(9):
        rows.take(f"t{number}", 0.0)
    assert list(rows._buckets) == ["t6", "t7", "t8"]
