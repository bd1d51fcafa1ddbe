"""Fixtures for control with monitoring, closed at the end of the test."""

import pytest
from monitored_world import MonitoredWorld


@pytest.fixture
async def make_world():
    """Return a factory of worlds, built from a system, a capacity and control options."""
    made = []

    def make(*arguments, **options):
        made.append(MonitoredWorld(*arguments, **options))
        return made[-1]

    yield make
    for world in made:
        await world.control.close()


@pytest.fixture
async def world(make_world):
    return make_world()
