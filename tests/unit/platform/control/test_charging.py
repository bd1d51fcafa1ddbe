"""An attempt that delivered nothing and is repeated by a client library is not charged."""

from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import Quota


async def test_the_attempt_that_a_library_repeats_is_not_charged(world):
    first = await world.submit("c1", fingerprint="same")
    await world.release(first, "cancelled")
    second = await world.submit("c2", fingerprint="same", user_agent_retry=True)
    await world.release(second, delivered=True)
    charged = {row["call_id"]: row["charged"] for row in world.journal.rows()}
    assert charged == {"row-run-c1": False, "row-run-c2": True}


async def test_a_budget_is_refunded_for_an_attempt_that_is_repeated(world):
    world.control._lifecycle.use_prices(PriceBook([("*", 0.0, TokenPrice(1000, 1000, 1000, "p"))]))
    quota = Quota(max_budget=1000, budget_duration="1d")
    world.control.post(ev.ContractChanged("app", "t", "app", quota=quota))
    await world.release(await world.submit("c1", fingerprint="same"), "cancelled")
    second = await world.submit("c2", fingerprint="same", user_agent_retry=True)
    await world.release(second, delivered=True)
    use = world.control._dispatcher.limits_in_use(("t", "app", "u"), world.now_s, 1_000_100.0)
    assert use.contract.budget.spent == 105, "of the second attempt alone"


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
