"""Test what a block does to the calls of a user that control has accepted."""

import pytest

from fairserve.platform.base.errors import PermissionDeniedError
from fairserve.scheduling import events as ev


async def two_running_one_queued(world):
    """Return two grants, of which the first is the user's, its queued call, and another's."""
    grants = [await world.submit(f"c{n}", run=f"r{n}", user=user) for n, user in enumerate("ab")]
    waiting = [
        await world.submitted(f"w{user}", run=f"w{user}", user=user, parents=()) for user in "ab"
    ]
    return grants, waiting


def block(world, *, running):
    world.control.post(ev.UserChanged("t", "a", blocked=True))
    world.control.post(ev.UserStopped("t", "a", running=running))


async def test_a_block_cancels_queued_calls_and_lets_running_ones_end(world):
    (grant, other), (waiting, others) = await two_running_one_queued(world)
    block(world, running=False)
    with pytest.raises(PermissionDeniedError, match="blocked"):
        await waiting
    assert world.journal.row("row-wa-wa")["outcome"] == "cancelled"
    assert world.cancelled == []
    await world.release(grant)
    assert world.journal.row("row-r0-c0")["outcome"] == "completed"
    await others  # another user's call gets the place
    await world.release(other)


async def test_a_block_that_cancels_all_stops_running_calls_and_ends_runs(world):
    (grant, other), (waiting, others) = await two_running_one_queued(world)
    await world.control.open_interaction("app/open", "t", "app", "a")
    block(world, running=True)
    with pytest.raises(PermissionDeniedError, match="blocked"):
        await waiting
    assert [(each.call_id, each.reason) for each in world.cancelled] == [
        (grant.call_id, "an operator has blocked this user")
    ]
    await world.release(grant, "cancelled")
    assert [run.user for run in await world.control.runs("t", None, 9)] == ["b", "b"]
    await others
    await world.release(other)


async def test_a_call_of_a_blocked_user_that_its_client_cancels_names_its_run(world):
    grant = await world.submit("c1", user="a")
    world.control.post(ev.UserChanged("t", "a", blocked=True))
    await world.control.close_interaction("app/run", cancel=True)
    assert [(each.call_id, each.reason) for each in world.cancelled] == [
        (grant.call_id, "its interaction was cancelled")
    ]
