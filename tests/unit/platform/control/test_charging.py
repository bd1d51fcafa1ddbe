"""Only the first attempt of a call is waived when it is repeated, and never the work of a worker."""

from functools import partial

import pytest
from counted_lines import lines_of
from until import turn
from virtual_cluster import make_call

from fairserve.interactions.call import NO_USAGE, TokenUsage
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.messages import Progress, Release, Submit
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import Quota


async def attempt(world, name, count, usage, *, run="run"):
    """Make an attempt with this retry count, which its client breaks off after this use."""
    grant = await world.submit(name, run=run, fingerprint="same", user_agent_retry=count > 0)
    await world.control.release(Release(grant.call_id, "cancelled", usage))


def charged(world):
    return {row["call_id"][-2:]: row["charged"] for row in world.journal.rows()}


async def test_an_attempt_that_no_worker_began_is_waived_when_it_is_repeated(world):
    await attempt(world, "c1", 0, NO_USAGE)
    second = await world.submit("c2", fingerprint="same", user_agent_retry=True)
    await world.release(second)
    assert charged(world) == {"c1": False, "c2": True}


@pytest.mark.parametrize("usage", [TokenUsage(100, 0, 0, 0), TokenUsage(100, 0, 0, 19)])
async def test_the_work_of_a_worker_is_never_waived(world, usage):
    world.control.use_prices(PriceBook([("*", 0.0, TokenPrice(1000, 1000, 1000, "p"))]))
    await turn()
    quota = Quota(max_budget=10_000, budget_duration="1d")
    world.control.post(ev.ContractChanged("app", "t", "app", quota=quota))
    for number in range(20):
        await attempt(world, f"c{number}", number, usage)
    assert all(charged(world).values())
    used = world.control.cell.dispatcher.limits_in_use(("t", "app", "u"), world.now_s, 1_000_100.0)
    assert used.contract.budget.spent == 20 * sum(usage)


@pytest.mark.parametrize("counts", [(0, 1, 2, 3), (1, 1, 1, 1)])
async def test_one_attempt_of_a_call_is_waived_at_most(world, counts):
    for number, count in enumerate(counts):
        await attempt(world, f"c{number}", count, NO_USAGE)
    waived = [name for name, paid in charged(world).items() if not paid]
    assert waived == (["c0"] if counts[0] == 0 else [])


async def test_a_waiting_attempt_is_waived_when_it_ends_unserved(world):
    first = await world.submit("c1", fingerprint="same", run="r1")
    second = await world.submit("c2", fingerprint="same", run="r2", user_agent_retry=True)
    await world.control.release(Release(first.call_id, "cancelled", NO_USAGE))
    await world.release(second)
    assert world.journal.row("row-r1-c1")["charged"] is False
    assert world.journal.row("row-r2-c2")["charged"] is True


async def test_a_running_attempt_on_which_a_worker_has_worked_is_charged(world):
    first = await world.submit("c1", fingerprint="same", run="r1")
    await world.submit("c2", fingerprint="same", run="r2", user_agent_retry=True)
    assert world.control.progress(Progress(first.call_id, True, TokenUsage(100, 0, 0, 0)))
    await world.release(first, "cancelled", output=0)
    assert world.journal.row("row-r1-c1")["charged"] is True


async def test_a_repetition_is_not_waived_by_the_next_one_while_it_runs(world):
    first = await world.submit("c1", fingerprint="same", run="r1", user_agent_retry=True)
    await world.submit("c2", fingerprint="same", run="r2", user_agent_retry=True)
    await world.control.release(Release(first.call_id, "cancelled", NO_USAGE))
    assert world.journal.row("row-r1-c1")["charged"] is True


def test_an_attempt_gets_its_number_at_the_same_cost_after_any_number():
    """A client may repeat a call as often as a run has calls, and each attempt would try all names."""
    cell, lines = Cell(SYSTEMS["fairserve"]), {}

    def repeat(number):
        call = make_call("c", run="R", parents=())
        cell.apply(Submit(call, f"row {number}", user_agent_retry=True), 0.0)

    for number in range(1, 301):
        attempt = partial(repeat, number)
        if number in (10, 300):
            lines[number] = lines_of(attempt)
        else:
            attempt()
    assert [live.call.call_id for live in cell.calls] == ["c", *(f"c~{n}" for n in range(2, 301))]
    assert lines[300] < lines[10] + 100
