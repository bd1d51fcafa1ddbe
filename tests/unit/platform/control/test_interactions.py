"""Test calls and their runs: inapplicable calls, cancellation, and views of a run."""

import asyncio

import pytest
from until import turn

from fairserve.platform.base.errors import (
    ConflictError,
    NotFoundError,
    UnavailableError,
    UnprocessableError,
)
from fairserve.platform.control import views as control_views


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
    waiting = await world.submitted("c3", run="r1", parents=())
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
    assert [view.state for view in await world.control.runs(None, "app", 10)] == ["open"]
    assert await world.control.runs(None, "other", 10) == []
    await world.release(await world.submit("c1", run="r"))
    view = await world.control.interaction("app/r")
    assert (view.state, view.calls, view.live_calls, view.tokens) == ("under_way", 1, 0, 105)
    await world.control.close_interaction("app/r", cancel=False)
    assert await world.control.runs(None, "app", 10) == []
    view = await world.control.interaction("app/r")  # until it is surely in the ledger
    assert (view.state, view.calls, view.live_calls, view.tokens) == ("complete", 1, 0, 105)
    assert view.ended_at is not None


async def test_many_active_calls_are_viewed_in_portions(world, monkeypatch):
    monkeypatch.setattr(control_views, "VIEWED_AT_ONCE", 2)
    tasks = [await world.submitted(f"c{n}", run="r", parents=()) for n in range(7)]
    turns = 0

    async def other_calls():
        nonlocal turns
        while True:
            turns += 1
            await turn()

    others = asyncio.create_task(other_calls())
    views = await world.control.interaction_calls("app/r")
    assert [view.record.call_id for view in views] == [f"row-r-c{n}" for n in range(7)]
    assert turns >= 3, "others had their turns in between"
    for task in (others, *tasks):
        task.cancel()
    await asyncio.gather(others, *tasks, return_exceptions=True)
