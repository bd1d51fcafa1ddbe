"""Test the list of clients and the details of one: order, shares, counters, limits and calls."""

import asyncio
import contextlib

import pytest

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE
from fairserve.platform.control.messages import Progress, RejectCall
from fairserve.scheduling import events as ev
from fairserve.throttling.base import Limits


async def call(world, user, *, output=5, tenant="t", app="app", number=0):
    grant = await world.submit(
        "c", run=f"{tenant}-{user}-{number}", user=user, tenant=tenant, app=app
    )
    await world.release(grant, output=output)


@contextlib.asynccontextmanager
async def all_wait(world, *clients):
    """Fill the workers, and queue a call of each client (user, app, tenant): they demand more."""
    for number in range(2):
        await world.submit("h", run=f"held-{number}", user="held", tenant="held", app="held")
    tasks = [
        await world.submitted("w", run=f"wait-{user}", user=user, app=app, tenant=tenant)
        for user, app, tenant in clients
    ]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def read(world, tenant, **which):
    """Return a page of the clients of one or all tenants."""
    return (await world.monitoring.clients.read(tenant)).page(**which)


def users(page):
    return [item.user for item in page.items]


async def test_clients_are_sorted_found_and_paged(world):
    for number in range(7):
        await call(world, f"user-{number}", output=number)
    await call(world, "elsewhere", output=30, tenant="other", app="apple")
    page = await read(world, None, limit=3)
    assert users(page) == ["elsewhere", "user-6", "user-5"]
    assert page.total == 8
    assert users(await read(world, None, limit=3, offset=6)) == ["user-1", "user-0"]
    assert users(await read(world, None, limit=2, sort="name")) == [
        "elsewhere",
        "user-0",
    ]
    assert users(await read(world, "t", limit=1)) == ["user-6"]
    assert users(await read(world, None, limit=9, query="R-3")) == ["user-3"]
    assert users(await read(world, None, limit=9, query="APPLE")) == ["elsewhere"]
    assert (await read(world, None, limit=9, query="nobody")).total == 0
    for named in (["other"], {"apple"}):
        page = await read(world, None, limit=9, query="r-6", named=named)
        assert users(page) == ["elsewhere", "user-6"]
        assert users(await read(world, "t", limit=9, query="r-6", named=named)) == ["user-6"]


async def test_shares_follow_the_weights_of_active_clients(world):
    world.control.post(ev.UserChanged("t", "heavy", weight=3.0))
    await call(world, "heavy", output=100)
    await call(world, "light", output=100)
    await call(world, "there", output=100, tenant="other")
    shown = {item.user: item for item in (await read(world, "t", limit=9)).items}
    received = {user: item.service_share for user, item in shown.items()}
    assert received == {"heavy": 0.5, "light": 0.5}
    assert {user: item.entitled_share for user, item in shown.items()} == received, "nobody waits"
    waiting = (("heavy", "app", "t"), ("light", "app", "t"), ("there", "app", "other"))
    async with all_wait(world, *waiting):
        shown = {item.user: item for item in (await read(world, "t", limit=9)).items}
        assert {user: item.entitled_share for user, item in shown.items()} == {
            "heavy": 0.75,
            "light": 0.25,
        }
        everybody = (await read(world, None, limit=9)).items
        entitled = {item.user: item.entitled_share for item in everybody}
        assert entitled == {"heavy": 0.375, "light": 0.125, "there": 0.5, "held": 0.0}, (
            "tenants have equal weights"
        )
    world.now_s += 400
    idle = (await read(world, "t", limit=9)).items
    assert [(item.service_5m, item.service_share, item.entitled_share) for item in idle] == [
        (0.0, None, None)
    ] * 2
    assert all(item.service_30m == 300.0 for item in idle)


async def test_shares_and_counters_follow_the_tenant_levels(world):
    world.control.post(ev.TenantChanged("t", levels="tenant > app > user"))
    owners = [("ann", "one"), ("ben", "one"), ("cleo", "two"), ("dan", "one")]
    for user, app in owners:
        await call(world, user, app=app)
    await call(world, "elsewhere", tenant="other")
    waiting = [*((*owner, "t") for owner in owners), ("elsewhere", "app", "other")]
    async with all_wait(world, *waiting):
        shown = (await read(world, None, limit=9)).items
    entitled = {item.user: item.entitled_share for item in shown if item.user != "held"}
    assert entitled == pytest.approx(
        {"ann": 1 / 12, "ben": 1 / 12, "dan": 1 / 12, "cleo": 1 / 4, "elsewhere": 1 / 2}
    )
    found = await world.monitoring.clients.one("t", "two", "cleo")
    assert [level.path for level in found.levels] == [("t",), ("t", "two"), ("t", "two", "cleo")]
    assert found.levels[-1].counter > 0
    assert len((await world.monitoring.clients.one("other", "app", "elsewhere")).levels) == 2


async def test_a_client_lists_its_calls_rejections_and_limits(make_world):
    world = make_world("rpm-1", capacity=1000)
    world.control.post(ev.AppChanged("app", DEFAULT_PROFILE, Limits(app_rpm=60)))
    world.control.post(ev.UserChanged("t", "u", rpm=1))
    grant = await world.submit("c1", run="r1")
    assert isinstance(await world.submit("c2", run="r2"), RejectCall)
    world.now_s += 2
    world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 40, 7), True))
    (item,) = (await read(world, None, limit=9)).items
    assert (item.queued_calls, item.running_calls, item.refused_calls) == (0, 1, 1)
    assert (item.service_1m, item.blocked, item.user_rpm, item.app_rpm) == (114.0, False, 1, 60)
    assert item.counter is None, "first come, first served"
    world.control.post(ev.UserChanged("t", "u", blocked=True, weight=2.0))
    world.now_s += 5
    found = await world.monitoring.clients.one("t", "app", "u")
    assert found.client.blocked
    weights = found.weights
    assert (weights.tenant, weights.app, weights.user) == (1.0, 1.0, 2.0)
    assert sum(value or 0 for value in found.service) == 114.0
    assert sum(found.refused) == 1
    assert len(found.at) == len(found.service) == len(found.refused) == 360
    assert found.at[-1] <= 1_000_000.0 + world.now_s
    (under_way,) = found.calls
    assert (under_way.state, under_way.output_tokens) == ("running", 7)
    assert found.limits.throttle is not None
    assert await world.monitoring.clients.one("t", "app", "nobody") is None
    assert await world.monitoring.clients.one("other", "app", "u") is None


async def test_a_client_lists_counters_of_every_level(world):
    await call(world, "busy", output=200)
    held = [await world.submit("h", run=f"h{n}", user="held") for n in range(2)]
    busy, other = [
        await world.submitted("c", run=f"r-{user}", user=user) for user in ("busy", "new")
    ]
    found = await world.monitoring.clients.one("t", "app", "busy")
    assert [level.path for level in found.levels] == [("t",), ("t", "busy")]
    tenant, own = found.levels
    assert own.least_counter <= own.counter <= tenant.counter
    assert tenant.least_counter == tenant.counter, "the only one"
    assert own.credits == tenant.credits == {}, "the router of the default has none"
    assert found.client.counter == own.counter - own.least_counter
    assert (found.client.queued_calls, [each.state for each in found.calls]) == (1, ["queued"])
    for task in (busy, other):
        task.cancel()
    for grant in held:
        await world.release(grant)


async def test_a_client_lists_credits_of_every_level(make_world):
    world = make_world("d2lpm")
    await call(world, "busy", output=200)
    found = await world.monitoring.clients.one("t", "app", "busy")
    assert [level.path for level in found.levels] == [("t",), ("t", "busy")]
    assert [level.credits.keys() for level in found.levels] == [{"w0", "w1"}] * 2


@pytest.mark.parametrize("system", ["fairserve", "fcfs", "central-dlpm", "preble"])
async def test_reading_changes_nothing(make_world, system):
    world = make_world(system)
    for number in range(4):
        await call(world, f"u{number % 2}", number=number)
    waiting = [await world.submitted("w", run=f"w{n}", user=f"u{n % 3}") for n in range(6)]
    world.pass_time(0)  # else ages of runs that are due are noted while a reading waits
    dispatcher = world.control.cell.dispatcher
    before = dispatcher.snapshot(world.now_s)
    page = await read(world, None, limit=9)
    for item in page.items:
        assert await world.monitoring.clients.one(item.tenant, item.app, item.user) is not None
    await world.control.runs(None, None, 10)
    assert dispatcher.snapshot(world.now_s) == before
    for task in waiting:
        task.cancel()


async def test_active_runs_are_filtered_by_owner(world):
    for number, (tenant, app, user) in enumerate(
        [("one", "a", "u"), ("one", "b", "u"), ("one", "b", "v"), ("other", "c", "u")]
    ):
        await world.control.open_interaction(f"{app}/r{number}", tenant, app, user)
        world.now_s += 1

    async def found(*which, limit=10, **more):
        return [run.interaction_id for run in await world.control.runs(*which, limit, **more)]

    assert await found(None, None) == ["c/r3", "b/r2", "b/r1", "a/r0"]
    assert await found(None, None, limit=2) == ["c/r3", "b/r2"]
    assert await found("one", None) == ["b/r2", "b/r1", "a/r0"]
    assert await found("one", "b") == ["b/r2", "b/r1"]
    assert await found("one", None, user="u") == ["b/r1", "a/r0"]
    assert await found("other", "b") == []
