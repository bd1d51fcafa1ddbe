"""``profiles``: how soon wrong profiles are corrected, and what manipulated ones gain."""

from __future__ import annotations

from collections.abc import Mapping

from fairserve.benchmarks.reproduce.profiles.convergence import convergence
from fairserve.benchmarks.reproduce.profiles.levers import CAPPED, LEVERS, Lever, cap, gains
from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Setting


def profiles(
    setting: Setting,
    levers: Mapping[str, Lever] = LEVERS,
    capped: Mapping[str, Lever] = CAPPED,
) -> list[Report]:
    """Return a report of each part. Raises TraceError without the recorded traces."""
    return [convergence(setting), gains(setting, levers), cap(setting, capped)]
