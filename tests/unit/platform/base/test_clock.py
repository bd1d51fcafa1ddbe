"""The process's time follows the system's clock and none of its jumps, in virtual time."""

import re
from pathlib import Path

import pytest

from fairserve.platform.base.clock import SETTLE_S, SteadyClock

PLATFORM = Path(__file__).parents[4] / "platform"
DAY_S = 86_400.0
START = 1_800_000_000.0
COMPARES_CLOCKS = {
    "base/clock.py",
    "server/doctor/workers.py",  # the clock of a worker with that of this host
    "server/doctor/redis_server.py",  # the clock of Redis with that of this host
    "fleet/fleet_file.py",  # the time of a file
    "server/backup/archive.py",  # the time of a file
    "console/oidc/provider.py",  # the clock of the provider
    "picker/certificate.py",  # the time from which a certificate is valid
    "monitoring/tracing/call_tracer.py",  # nanoseconds of spans, as the collector's other sources
    "server/commands/trace.py",  # a command
}


class Machine:
    """A host whose clock can be set."""

    def __init__(self):
        self.uptime_s, self.shown = 50.0, START
        self.clock = SteadyClock(lambda: self.shown, lambda: self.uptime_s)

    def run(self, seconds, every_s=1.0):
        """Let time pass; return the time after it, which never went back on the way."""
        before = self.clock()
        for _ in range(int(seconds / every_s)):
            self.uptime_s += every_s
            self.shown += every_s
            now = self.clock()
            assert now >= before
            before = now
        return before


@pytest.fixture
def machine():
    return Machine()


@pytest.mark.parametrize("jump_s", [2 * DAY_S, 3600.0, 10.0, -10.0, -3600.0, -20 * 365 * DAY_S])
def test_a_clock_that_jumps_for_a_minute_and_returns_changes_nothing(machine, jump_s):
    machine.shown += jump_s
    assert machine.run(60) == START + 60
    machine.shown -= jump_s
    assert machine.run(2 * SETTLE_S) == START + 60 + 2 * SETTLE_S


def test_two_jumps_are_two_times(machine):
    """A clock that jumps about is not believed, however long it does."""
    for jump_s in (100.0, 100.0, 100.0, 100.0):
        machine.shown += jump_s
        machine.run(SETTLE_S - 1)
    assert machine.clock() == START + 4 * (SETTLE_S - 1)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_jump_that_lasts_is_followed_in_one_step(machine, jump_s):
    machine.shown += jump_s
    assert machine.run(SETTLE_S - 1) == START + SETTLE_S - 1
    machine.uptime_s += 2
    machine.shown += 2
    assert machine.clock() == machine.shown == START + jump_s + SETTLE_S + 1
    machine.run(10)


def test_small_corrections_are_followed_and_time_does_not_go_back(machine):
    machine.shown += 3
    assert machine.clock() == START + 3
    machine.shown -= 2
    assert machine.clock() == START + 3, "it waits"
    assert machine.run(10) == START + 11


def test_nothing_else_in_the_platform_reads_the_systems_clock():
    found = {
        file.relative_to(PLATFORM).as_posix()
        for file in PLATFORM.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\b|datetime\.now\(", file.read_text())
    }
    assert found <= COMPARES_CLOCKS
