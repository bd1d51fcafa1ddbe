"""The profile in force: what an app's owner declared, until its calls have shown what they use.

Profiles decide how service is weighed: an app whose typical call is taken for larger than it is pays
less for each. So its owner's word counts less than what is seen, and least where it would be of use:

- Before ``min_samples`` calls were seen, the declared profile holds, but a call weighs at most
  ``believed_tokens``, and a run is expected to have at most ``believed_calls``.
- From then on, where less is used than was declared, what is used holds.
- Where more is used than was declared, the profile goes from one to the other (geometrically) as
  evidence grows; it is learned after ``learned_interactions``, or ``learned_calls``.
- A learned profile grows at most ``max_growth_per_day`` times in a day. It falls at once: a profile that
  falls slowly is one that can be padded today and lived on tomorrow.

What was declared counts no longer once a profile was learned, whatever is declared then. Times are
seconds of the caller's clock; everything is a pure function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from fairserve.interactions.profile import AppProfile, StageProfile
from fairserve.interactions.profile_statistics import ProfileFigures, StageFigures

Source = Literal["declared", "blended", "learned"]

_DAY_S = 86_400.0
_TOKEN = 1.0
"""Added to token counts that are averaged geometrically, so that none is 0."""


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """How profiles are learned. Calls and interactions are those of one app."""

    window_s: float = 14 * _DAY_S
    """Older calls do not count."""
    max_calls: int = 20_000
    """So many of the newest calls count."""
    half_life_s: float = 3 * _DAY_S
    """Calls this old count half."""
    min_samples: int = 20
    """Calls of a stage or an agent, before anything is said of it."""
    learned_interactions: int = 50
    learned_calls: int = 1000
    max_growth_per_day: float = 2.0
    """``inf``: no bound."""
    min_change: float = 0.05
    """A profile that differs by less, as a share, stays as it is."""
    believed_tokens: float = 4800.0
    """Weighted tokens of a typical call, at most, while only its owner says so; ``inf`` is the paper.
    The default is four times the reference call."""
    believed_calls: float = 32.0
    """Calls of a run, at most, while only its owner says so."""

    def __post_init__(self) -> None:
        for name in ("window_s", "half_life_s", "believed_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: over 0")
        for name in (
            "max_calls",
            "min_samples",
            "learned_interactions",
            "learned_calls",
            "believed_calls",
            "max_growth_per_day",
        ):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 1 or more")
        if not 0 <= self.min_change < 1:
            raise ValueError(f"min_change is {self.min_change}; allowed: 0 to under 1")


@dataclass(frozen=True, slots=True)
class InForce:
    """The profile that holds, and why."""

    profile: AppProfile
    source: Source
    since_s: float
    """When it began to hold."""
    reason: str


def as_declared(declared: AppProfile, now_s: float, options: LearningOptions) -> InForce:
    """What holds while nothing was learned: the declared profile, as far as it is believed."""
    believed = replace(
        declared,
        calls_per_interaction=min(declared.calls_per_interaction, options.believed_calls),
        believed_tokens=None if math.isinf(options.believed_tokens) else options.believed_tokens,
    )
    return InForce(believed, "declared", now_s, f"declared; under {options.min_samples} calls seen")


def learn(
    declared: AppProfile,
    previous: InForce,
    figures: ProfileFigures,
    now_s: float,
    options: LearningOptions,
) -> InForce:
    """The profile that holds from now on; ``previous`` itself where it changes too little.

    Idle time-outs are always as declared.
    """
    if not figures.stages:
        held = previous if previous.source != "declared" else as_declared(declared, now_s, options)
        return _unless_same(previous, _with_timeout(held, declared), options)
    was_learned = previous.source == "learned"
    base = previous.profile if was_learned else declared
    evidence = max(
        figures.interactions / options.learned_interactions,
        figures.calls / options.learned_calls,
    )
    more = min(1.0, evidence)
    profile = AppProfile(
        stages=_blended_stages(base, figures, more, keep=was_learned),
        calls_per_interaction=_blended_calls(base, figures, more),
        idle_timeout_s=declared.idle_timeout_s,
        agents={agent: _expected(of_agent) for agent, of_agent in figures.agents.items()},
        run_lengths=figures.run_lengths,
    )
    source: Source = "learned" if was_learned or more >= 1 else "blended"
    reason = f"{source} from {figures.calls} calls of {figures.interactions} interactions"
    if was_learned:
        elapsed_days = min(1.0, max(0.0, now_s - previous.since_s) / _DAY_S)
        most = options.max_growth_per_day**elapsed_days
        profile, bounded = _bounded(previous.profile, profile, most)
        if bounded:
            reason += f"; grows at most {options.max_growth_per_day:g} times a day"
    return _unless_same(previous, InForce(profile, source, now_s, reason), options)


def _blended_stages(
    base: AppProfile, figures: ProfileFigures, more: float, *, keep: bool
) -> tuple[StageProfile, ...]:
    """Stage by stage; ``more`` is how far to go where more is used than in ``base``, and with ``keep``
    where less is.
    """
    seen = _expected(figures.stages)
    number = len(seen) if more >= 1 else max(len(seen), len(base.stages))
    blended: list[StageProfile] = []
    for stage in range(1, number + 1):
        before, found = base.stage(stage), seen[min(stage, len(seen)) - 1]
        less = found.total_tokens <= before.total_tokens
        share = 1.0 if less and not keep else more
        blended.append(
            StageProfile(
                _between(before.input_tokens, found.input_tokens, share),
                _between(before.system_tokens, found.system_tokens, share),
                _between(before.output_tokens, found.output_tokens, share),
            )
        )
    return tuple(blended)


def _blended_calls(base: AppProfile, figures: ProfileFigures, more: float) -> float:
    before, found = base.calls_per_interaction, max(1.0, figures.calls_per_interaction.expected)
    return max(1.0, _between(before, found, more))


def _between(before: float, found: float, share: float) -> float:
    if share >= 1:
        return found
    logs = (1 - share) * math.log(before + _TOKEN) + share * math.log(found + _TOKEN)
    return max(0.0, math.exp(logs) - _TOKEN)


def _expected(figures: tuple[StageFigures, ...]) -> tuple[StageProfile, ...]:
    return tuple(stage.expected for stage in figures)


def _bounded(before: AppProfile, after: AppProfile, most: float) -> tuple[AppProfile, bool]:
    """No stage and no run more than ``most`` times as large as before."""
    stages = tuple(
        _at_most(stage, most * before.stage(number).total_tokens)
        for number, stage in enumerate(after.stages, start=1)
    )
    calls = min(after.calls_per_interaction, most * before.calls_per_interaction)
    bounded = stages != after.stages or calls < after.calls_per_interaction
    return replace(after, stages=stages, calls_per_interaction=calls), bounded


def _at_most(stage: StageProfile, tokens: float) -> StageProfile:
    share = tokens / stage.total_tokens
    if share >= 1:
        return stage
    return StageProfile(
        share * stage.input_tokens, share * stage.system_tokens, share * stage.output_tokens
    )


def _with_timeout(held: InForce, declared: AppProfile) -> InForce:
    return replace(held, profile=replace(held.profile, idle_timeout_s=declared.idle_timeout_s))


def _unless_same(previous: InForce, found: InForce, options: LearningOptions) -> InForce:
    return found if _differs(previous, found, options.min_change) else previous


def _differs(previous: InForce, found: InForce, share: float) -> bool:
    one, other = previous.profile, found.profile
    if previous.source != found.source or one.idle_timeout_s != other.idle_timeout_s:
        return True
    if one.believed_tokens != other.believed_tokens:
        return True
    if one.agents.keys() != other.agents.keys():
        return True
    stages = max(len(one.stages), len(other.stages))
    values = [(one.calls_per_interaction, other.calls_per_interaction)]
    for number in range(1, stages + 1):
        a, b = one.stage(number), other.stage(number)
        values += [
            (a.total_tokens, b.total_tokens),
            (a.output_tokens + _TOKEN, b.output_tokens + _TOKEN),
        ]
    return any(abs(b - a) > share * max(a, b) for a, b in values)
