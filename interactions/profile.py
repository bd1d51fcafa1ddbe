"""Token profiles: what an app's calls are expected to use, stage by stage.

WSC weighs a call by its app's profile (FairServe 4.3), the feeder reserves the expected output,
and the immunity of an interaction ends at a multiple of the profile (ALGORITHMS section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Expected tokens of one call at one stage."""

    input_tokens: float
    system_tokens: float
    output_tokens: float

    def __post_init__(self) -> None:
        for name in ("input_tokens", "system_tokens", "output_tokens"):
            value = getattr(self, name)
            if not 0 <= value < 1e9:
                raise ValueError(f"{name} of a stage is {value}; allowed: 0 to 1e9")
        if self.input_tokens + self.system_tokens + self.output_tokens <= 0:
            raise ValueError("a stage profile needs at least one expected token")

    @property
    def total_tokens(self) -> float:
        """Input, system and output tokens together."""
        return self.input_tokens + self.system_tokens + self.output_tokens


@dataclass(frozen=True)
class AppProfile:
    """The token profile of an app; stages past the last one declared repeat it."""

    stages: tuple[StageProfile, ...]
    calls_per_interaction: float = 1.0
    idle_timeout_s: float = 300.0
    """An interaction without a call for this long has expired."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a profile needs at least one stage")
        if not 1 <= self.calls_per_interaction <= 1e6:
            raise ValueError(
                f"calls_per_interaction is {self.calls_per_interaction}; allowed: 1 to 1e6"
            )
        if not 0 < self.idle_timeout_s <= 7 * 86_400:
            raise ValueError(f"idle_timeout_s is {self.idle_timeout_s}; allowed: over 0, to 604800")

    def stage(self, number: int) -> StageProfile:
        """The expected tokens of a call at stage ``number`` (1 is a root)."""
        return self.stages[min(max(number, 1), len(self.stages)) - 1]

    @cached_property
    def tokens_per_interaction(self) -> float:
        """Expected tokens of a whole interaction: the mean stage times the expected calls."""
        mean = sum(stage.total_tokens for stage in self.stages) / len(self.stages)
        return mean * self.calls_per_interaction


DEFAULT_PROFILE = AppProfile(stages=(StageProfile(1000.0, 0.0, 200.0),), calls_per_interaction=8.0)
"""Used for an app that declares none; also the reference size of the feeder's prices."""
