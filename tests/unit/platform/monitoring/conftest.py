"""Worlds of control with monitoring."""

import pytest
from monitored_world import MonitoredWorld


@pytest.fixture
def world_type():
    return MonitoredWorld
