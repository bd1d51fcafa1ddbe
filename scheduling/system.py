"""A system: the names and options of throttle, feeder, router and local scheduler.

Every system of the papers is one :class:`SystemConfig` (ALGORITHMS section 7); the live server, the
simulator and the workers build their parts from the same value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fairserve.interactions.call import DEFAULT_LEVELS, LEVELS
from fairserve.interactions.tracking.immunity import ImmunityRule
from fairserve.throttling.overload.watermarks import Watermarks

_PARTS = ("throttle", "feeder", "router", "local")

OWN_OPTIONS = (
    "feed_window",
    "resident_share",
    "hold_s",
    "high_watermark",
    "low_watermark",
    "immunity_factor",
    "immunity_rule",
    "worker_silence_s",
    "background_window",
    "background_calls",
    "levels",
    "newcomers",
    "newcomer_slices",
    "newcomer_growth_s",
)
"""Options of the system itself; the others belong to one of its policies."""


@dataclass(frozen=True, slots=True)
class SystemConfig:
    """Names of the policies and their options (keyword arguments of the registries' factories)."""

    name: str
    throttle: str
    feeder: str
    router: str
    local: str
    feed_window: float | None = None
    """Share of a worker's KV capacity that may wait at it; None dispatches calls at once."""
    resident_share: float | None = None
    """Share of a worker's KV capacity for the footprints of runs in progress; a run begins once its
    own fits. None: it begins when its call is chosen."""
    hold_s: float = 150.0
    """Seconds after which a held run is passed only by what fits beside it; before, also by runs that
    are expected to end sooner."""
    high_watermark: float = 2.0
    low_watermark: float = 1.2
    immunity_factor: float = 2.0
    """Multiple of its app's longest usual run at which an interaction loses its immunity."""
    immunity_rule: Literal["p99", "profile"] = "p99"
    """Definition of the longest usual run (:mod:`fairserve.interactions.tracking.immunity`)."""
    worker_silence_s: float = 15.0
    """Seconds without a report after which a worker that reported before is lost."""
    background_window: float = 0.5
    """Share of a worker's KV capacity and slots that background calls may hold, counted with their
    largest output."""
    background_calls: int = 8
    """Most background calls at a worker at a time."""
    levels: str = DEFAULT_LEVELS
    """Levels of the schedulers' clients, one of ``LEVELS``."""
    newcomers: Literal["own", "shared"] = "own"
    """Client of a new user of an app: a separate one, or one that the app's newcomers share until
    they have a history (:mod:`fairserve.scheduling.fairness.newcomers`)."""
    newcomer_slices: float = 20.0
    """Cost of a history in typical calls."""
    newcomer_growth_s: float = 86_400.0
    """Minimum time in which an app's users with a history grow e-fold; 0 means no bound."""
    simulated_only: bool = False
    """True if the system needs the true output lengths, which only a simulator has."""
    throttle_options: Mapping[str, Any] = field(default_factory=dict)
    feeder_options: Mapping[str, Any] = field(default_factory=dict)
    router_options: Mapping[str, Any] = field(default_factory=dict)
    local_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Watermarks(self.high_watermark, self.low_watermark)
        if self.feed_window is not None and not 0 < self.feed_window <= 1:
            raise ValueError(f"feed_window is {self.feed_window}; allowed: over 0, to 1, or null")
        if self.resident_share is not None and not 0 < self.resident_share <= 1:
            raise ValueError(
                f"resident_share is {self.resident_share}; allowed: over 0, to 1, or null"
            )
        if not self.hold_s > 0:
            raise ValueError(f"hold_s is {self.hold_s}; allowed: over 0")
        if self.levels not in LEVELS:
            raise ValueError(f"levels is {self.levels!r}; allowed: {', '.join(map(repr, LEVELS))}")
        ImmunityRule(self.immunity_factor, self.immunity_rule)
        if self.newcomers not in ("own", "shared"):
            raise ValueError(f"newcomers is {self.newcomers!r}; allowed: own, shared")
        for name in ("newcomer_slices", "newcomer_growth_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; allowed: not negative, finite")
        if not 0 < self.background_window <= 1:
            raise ValueError(
                f"background_window is {self.background_window}; allowed: over 0, to 1"
            )
        if self.background_calls < 1:
            raise ValueError(f"background_calls is {self.background_calls}; allowed: 1 or more")
        if not self.worker_silence_s > 0:
            raise ValueError(f"worker_silence_s is {self.worker_silence_s}; allowed: over 0")

    @property
    def immunity(self) -> ImmunityRule:
        """Return the immunity rule of active runs."""
        return ImmunityRule(self.immunity_factor, self.immunity_rule)

    def with_options(self, options: Mapping[str, Any]) -> SystemConfig:
        """Return this system with some options changed.

        Keys are option names such as ``feed_window``, or ``throttle.``, ``feeder.``, ``router.`` or
        ``local.`` followed by an option of that policy. Raises ValueError naming the key. The
        options of a policy are checked when it is built.
        """
        changes: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        for key, value in options.items():
            part, dot, option = key.partition(".")
            if dot and part in _PARTS and option:
                nested.setdefault(part, {})[option] = value
            elif key in OWN_OPTIONS:
                changes[key] = value
            else:
                allowed = ", ".join(sorted(OWN_OPTIONS) + [f"{part}.<option>" for part in _PARTS])
                raise ValueError(f"unknown option {key!r}; allowed: {allowed}")
        for part, values in nested.items():
            changes[f"{part}_options"] = {**getattr(self, f"{part}_options"), **values}
        return replace(self, **changes)
