"""Fixtures for worlds of control, closed at the end of the test."""

import pytest
from control_world import World


@pytest.fixture
def world_type():
    return World


@pytest.fixture
async def make_world(world_type):
    """Return a factory of worlds, built from a system, a capacity and control options."""
    made = []

    def make(*arguments, **options):
        made.append(world_type(*arguments, **options))
        return made[-1]

    yield make
    for world in made:
        await world.control.close()


@pytest.fixture
async def world(make_world):
    return make_world()
