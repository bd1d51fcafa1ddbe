"""Shares of the first clients and of all others, read in portions."""

import asyncio

import pytest
from until import turn

from fairserve.platform.monitoring import client_shares
from fairserve.scheduling import events as ev


async def call(world, user, output, tenant="t"):
    grant = await world.submit("c", run=f"{tenant}-{user}", user=user, tenant=tenant)
    await world.release(grant, output=output)


async def test_the_shares_are_those_of_the_list_of_clients(world):
    world.control.post(ev.UserChanged("t", "heavy", weight=3.0))
    for user, output in (("heavy", 100), ("light", 50), ("least", 1)):
        await call(world, user, output)
    await call(world, "there", 70, tenant="other")
    listed = {
        (item.tenant, item.app, item.user): (item.service_share, item.entitled_share)
        for item in (await world.monitoring.clients.read(None)).page(limit=9).items
    }
    whole = await world.monitoring.client_shares.read(9)
    assert whole.active == 4
    assert whole.other == client_shares.Share(0.0, 0.0)
    found = {owner: (share.served, share.entitled) for owner, share in whole.top.items()}
    assert found == {owner: pytest.approx(shares) for owner, shares in listed.items()}
    two = await world.monitoring.client_shares.read(2)
    assert [user for *_, user in two.top] == ["heavy", "there"]
    rest = [listed["t", "app", user] for user in ("light", "least")]
    served, entitled = (sum(each) for each in zip(*rest, strict=True))
    assert (two.other.served, two.other.entitled) == pytest.approx((served, entitled))
    none = await world.monitoring.client_shares.read(0)
    assert (none.other.served, none.other.entitled) == pytest.approx((1, 1))


async def test_nobody_was_served(world):
    found = await world.monitoring.client_shares.read(5)
    assert (found.active, found.top, found.jain_index) == (0, {}, None)


async def test_other_calls_proceed_while_many_clients_are_read(world, monkeypatch):
    monkeypatch.setattr(client_shares, "AT_ONCE", 10)
    for number in range(95):
        await call(world, f"user-{number}", 5)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await turn()

    counting = asyncio.create_task(count())
    active = await world.monitoring.client_shares._active(None)
    counting.cancel()
    assert [len(each) for each in active] == [95, 0]
    assert turns >= 9
    found = await world.monitoring.client_shares.read(1)
    assert found is await world.monitoring.client_shares.read(1), "read once a bucket"
