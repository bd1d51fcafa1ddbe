"""Default values of interactions for fields that a file lacks.

Foreign files have no tenant and often no user, arrival or gap. Reading fills in these constants;
the rules of ``assignment.py`` then replace them.

Weakness: after reading, a value from the file cannot be distinguished from an equal default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairserve.engine.simulated.traces.model import TraceError


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for fields that a file omits or that are null."""

    tenant: str = "default"
    user: str = "default"
    arrival_s: float = 0.0
    gap_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tenant", "user"):
            if not getattr(self, name):
                raise TraceError(f"default {name}: expected a name, got an empty string")
        for name in ("arrival_s", "gap_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TraceError(f"default {name}: expected a finite number of at least 0")
