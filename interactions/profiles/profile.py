"""Token profiles: the expected token use of an app's calls, by stage.

WSC weighs a call by its app's profile (FairServe 4.3), the feeder reserves the expected output, and
the immunity of an interaction ends at a multiple of the profile (ALGORITHMS section 4). The app's
owner declares a profile, and it is refined from observed calls
(:mod:`fairserve.interactions.profiles.profile_learning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

MAX_STAGES = 64
"""Maximum number of stages of a profile; later stages repeat the last one."""
MOST_TOKENS = 10_000_000.0
"""Maximum tokens of one kind per call at one stage, sized for the longest model contexts."""
MOST_CALLS = 10_000.0
"""Maximum calls of an interaction, the same as the tracker's limit."""


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Expected tokens of one call at one stage, over all its samples."""

    input_tokens: float
    system_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0
    """Cached prompt tokens, observed; never declared."""

    def __post_init__(self) -> None:
        for name in ("input_tokens", "system_tokens", "output_tokens"):
            value = getattr(self, name)
            if not 0 <= value <= MOST_TOKENS:
                raise ValueError(f"{name} of a stage is {value}; allowed: 0 to {MOST_TOKENS:,.0f}")
        if not 0 <= self.cached_tokens <= self.input_tokens + self.system_tokens:
            raise ValueError(
                f"cached_tokens of a stage is {self.cached_tokens}; allowed: 0 to the prompt's tokens"
            )
        if self.input_tokens + self.system_tokens + self.output_tokens <= 0:
            raise ValueError("a stage profile needs at least one expected token")

    @property
    def total_tokens(self) -> float:
        """Return the input, system and output tokens together."""
        return self.input_tokens + self.system_tokens + self.output_tokens


Stages = tuple[StageProfile, ...]


@dataclass(frozen=True)
class AppProfile:
    """Token profile of an app; stages after the last declared one repeat it."""

    stages: Stages
    calls_per_interaction: float = 1.0
    idle_timeout_s: float = 300.0
    """Time without a call after which an interaction expires, in seconds."""
    agents: Mapping[str, Stages] = field(default_factory=dict)
    """Expected tokens by agent and stage, where known. They predict output only; weights depend on
    the stage alone, so that naming agents changes no client's share."""
    run_lengths: tuple[float, ...] = ()
    """Quantiles of the calls per interaction, each for an equal share of interactions, ascending;
    empty if only the expectation is known."""
    believed_tokens: float | None = None
    """Upper bound of the weighted tokens of a typical call at a stage after ``seen_stages``, where
    larger values come from the owner's declaration only. None means no bound."""
    seen_stages: int = 0
    """Number of leading stages with observed figures."""
    p99_calls: float | None = None
    """99th percentile of the calls of the app's runs; None while too few have ended."""
    p99_tokens: float | None = None
    """99th percentile of the tokens of the app's runs; None while too few have ended."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a profile needs at least one stage")
        if not 1 <= self.calls_per_interaction <= MOST_CALLS:
            raise ValueError(
                f"calls_per_interaction is {self.calls_per_interaction}; "
                f"allowed: 1 to {MOST_CALLS:,.0f}"
            )
        if not 0 < self.idle_timeout_s <= 7 * 86_400:
            raise ValueError(f"idle_timeout_s is {self.idle_timeout_s}; allowed: over 0, to 604800")

    def stage(self, number: int) -> StageProfile:
        """Return the expected tokens of a call at stage ``number`` (1 is a root)."""
        return _at(self.stages, number)

    def believed(self, stage: int, tokens: float) -> float:
        """Return the weighted tokens assumed for a typical call of this stage."""
        if self.believed_tokens is None or stage <= self.seen_stages:
            return tokens
        return min(tokens, self.believed_tokens)

    def expected_output(self, stage: int, agent: str | None) -> float:
        """Return the expected output tokens of the agent's calls, else of all calls at this stage."""
        of_agent = self.agents.get(agent) if agent is not None else None
        return _at(of_agent or self.stages, stage).output_tokens

    @cached_property
    def tokens_per_interaction(self) -> float:
        """Return the expected tokens of an interaction: mean per stage times expected calls."""
        mean = sum(stage.total_tokens for stage in self.stages) / len(self.stages)
        return mean * self.calls_per_interaction

    def remaining_calls(self, made: int) -> float:
        """Return the expected remaining calls after ``made`` calls, this one included; at least 1.

        This is the mean over the known lengths that are longer. A run longer than all of them is
        expected to continue for as many calls as it exceeds them, so an endless run never seems
        close to its end. O(lengths).
        """
        lengths = self.run_lengths or (self.calls_per_interaction,)
        longer = [length - made for length in lengths if length > made]
        return max(1.0, sum(longer) / len(longer) if longer else made - lengths[-1] + 1.0)

    def to_plain(self) -> dict[str, Any]:
        """Return the profile as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> AppProfile:
        """Return the profile of plain JSON values; absent fields take their defaults."""
        agents = plain.get("agents", {})
        return cls(
            **{
                **plain,
                "stages": _stages(plain["stages"]),
                "agents": {agent: _stages(stages) for agent, stages in agents.items()},
                "run_lengths": tuple(plain.get("run_lengths", ())),
            }
        )


def _at(stages: Stages, number: int) -> StageProfile:
    return stages[number - 1 if number > 1 else 0] if number < len(stages) else stages[-1]


def _stages(plain: list[dict[str, float]]) -> Stages:
    return tuple(StageProfile(**stage) for stage in plain)


DEFAULT_PROFILE = AppProfile(stages=(StageProfile(1000.0, 0.0, 200.0),), calls_per_interaction=8.0)
"""Profile of an app that declares none; also the reference size of the feeder's charge factors."""
