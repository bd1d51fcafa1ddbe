"""Test places that owners take in turns: the order, the share of one, and waiters that leave."""

import asyncio

import pytest
from until import settle

from fairserve.platform.base.turns import Turns


class World:
    """Waiters of a few places, in the order in which they get them."""

    def __init__(self, places, of_owner=None):
        self.turns, self.got = Turns(places, of_owner), []

    async def asks(self, *names):
        """Ask for places; the first letter of a name is its owner."""
        tasks = [asyncio.create_task(self._take(name)) for name in names]
        await settle()
        return tasks

    async def _take(self, name):
        await self.turns.take(name[0])
        self.got.append(name)

    async def ends(self, name):
        self.turns.release(name[0])
        await settle()


async def test_owners_take_turns_whatever_their_number_of_waiters():
    world = World(1)
    await world.asks("a0", "a1", "a2", "a3", "b0", "c0", "b1")
    for name in ("a0", "a1", "b0", "c0", "a2", "b1"):
        await world.ends(name)
    assert world.got == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


async def test_an_owner_has_its_share_and_no_more():
    world = World(4, 2)
    await world.asks("a0", "a1", "a2", "a3")
    assert world.got == ["a0", "a1"], "two places are free, and are not a's"
    await world.asks("b0", "c0")
    assert world.got == ["a0", "a1", "b0", "c0"]
    await world.ends("b0")
    assert world.got == ["a0", "a1", "b0", "c0"], "b's place is not a's either"
    await world.ends("a0")
    assert world.got[4:] == ["a2"]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_waiter_that_leaves_keeps_no_place(granted):
    world = World(1)
    await world.asks("a0")
    [waits] = await world.asks("b0")
    if granted:
        world.turns.release("a")
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    if not granted:
        world.turns.release("a")
    await world.asks("c0")
    assert world.got == ["a0", "c0"]
