"""Worlds of control that are closed when the test is over."""

import pytest
from control_world import World


@pytest.fixture
async def make_world():
    """A world of a system, a capacity and options of control."""
    made = []

    def make(*arguments, **options):
        made.append(World(*arguments, **options))
        return made[-1]

    yield make
    for world in made:
        await world.control.close()


@pytest.fixture
async def world(make_world):
    return make_world()
