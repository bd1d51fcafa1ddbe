"""The profile in force: the owner's declaration, until observed calls replace it.

Profiles decide how service is weighed: an app pays less per call if its typical call is
overestimated. So a declaration counts less than observations, and least where it would benefit its
owner. For each stage, and for the calls of a run alike:

- A declaration sets the proportions between stages. After ``min_samples`` observed calls, all
  stages are scaled by observed tokens over declared tokens.
- A stage with fewer than ``min_samples`` calls is scaled like the others, but its typical call
  counts at most ``believed_tokens``, and only as far as WSC trusts the tenant's declarations. A run
  is expected to have at most ``believed_calls`` calls.
- With ``min_samples`` calls, a smaller observed value is adopted at once.
- A larger observed value is approached geometrically as more calls are seen, starting from at least
  half of it; after ``learned_after`` calls it is learned. (Without the half, one stage declared far
  too large made all others small in proportion, and its app was hardly served for minutes.)
- A learned value grows by at most a factor ``max_growth_per_day`` per day. It falls at once: a
  profile that fell slowly could be inflated today and exploited tomorrow.

Once a value is learned, its declaration no longer counts, even if it is declared again. Times are
seconds of the caller's clock; all functions are pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from fairserve.interactions.profiles.profile import MOST_TOKENS, AppProfile, StageProfile, Stages
from fairserve.interactions.profiles.profile_statistics import ProfileFigures, StageFigures

Source = Literal["declared", "blended", "learned"]

_DAY_S = 86_400.0
_TOKEN = 1.0
"""Offset added to token counts before geometric averaging, so that none is 0."""
_LEAST_SHARE = 0.5
"""Minimum estimate of a stage's tokens, as a share of the observed tokens."""
_LEAST_TOKENS = 1e-9
"""Tokens of a stage that was scaled to zero."""
_ROUNDING = 1e-9
"""Relative tolerance for equal totals, for the rounding error of scaling."""


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """Options of profile learning; calls and interactions are those of one app."""

    window_s: float = 14 * _DAY_S
    """Age in seconds after which calls no longer count."""
    max_calls: int = 5_000
    """Maximum number of calls that count, the newest first."""
    half_life_s: float = 3 * _DAY_S
    """Age in seconds at which a call counts half."""
    min_samples: int = 20
    """Minimum calls of a stage or agent, or interactions, for an estimate."""
    learned_after: int = 100
    """Calls of a stage, or interactions, after which a value is learned."""
    max_growth_per_day: float = 2.0
    """Maximum growth factor per day of a learned value; ``inf`` means no bound."""
    min_change: float = 0.1
    """Minimum relative change for which the profile is replaced."""
    believed_tokens: float = 4800.0
    """Maximum weighted tokens of a typical call that a declaration alone can claim; ``inf`` is the
    paper. The default is four times the reference call."""
    believed_calls: float = 32.0
    """Maximum calls per run that a declaration alone can claim."""

    def __post_init__(self) -> None:
        for name in ("window_s", "half_life_s", "believed_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: over 0")
        at_least_one = ("max_calls", "min_samples", "max_growth_per_day", "believed_calls")
        for name in at_least_one:
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 1 or more")
        if self.learned_after < self.min_samples:
            raise ValueError(
                f"learned_after is {self.learned_after}; allowed: min_samples"
                f" ({self.min_samples}) or more"
            )
        if not 0 <= self.min_change < 1:
            raise ValueError(f"min_change is {self.min_change}; allowed: 0 to under 1")


@dataclass(frozen=True, slots=True)
class InForce:
    """The profile in force, with the reason for it."""

    profile: AppProfile
    since_s: float
    """Time in seconds from which the profile is in force."""
    learned_stages: int = 0
    """Number of leading stages with learned values."""
    calls_learned: bool = False
    """True if ``calls_per_interaction`` is learned."""
    reason: str = ""

    @property
    def source(self) -> Source:
        """Return the overall source of the profile."""
        if self.learned_stages and self.calls_learned:
            return "learned"
        return "blended" if self.profile.seen_stages else "declared"


def as_declared(declared: AppProfile, now_s: float, options: LearningOptions) -> InForce:
    """Return the profile before any call was seen: the declaration, within its bounds."""
    believed = replace(
        declared,
        calls_per_interaction=min(declared.calls_per_interaction, options.believed_calls),
        believed_tokens=_finite(options.believed_tokens),
    )
    return InForce(believed, now_s, reason=f"declared; under {options.min_samples} calls seen")


def learn(
    declared: AppProfile,
    previous: InForce,
    figures: ProfileFigures,
    now_s: float,
    options: LearningOptions,
) -> InForce:
    """Return the profile from now on, or ``previous`` itself if the change is too small.

    Idle time-outs are always taken from the declaration.
    """
    if figures.stages:
        found = _learned(declared, previous, figures, now_s, options)
    elif previous.profile.seen_stages:
        profile = replace(previous.profile, idle_timeout_s=declared.idle_timeout_s)
        found = replace(previous, profile=profile)
    else:
        found = as_declared(declared, now_s, options)
    return found if _differs(previous, found, options.min_change) else previous


def _learned(
    declared: AppProfile,
    previous: InForce,
    figures: ProfileFigures,
    now_s: float,
    options: LearningOptions,
) -> InForce:
    before = previous.profile
    corrected = _corrected(declared, figures)
    days = min(1.0, max(0.0, now_s - previous.since_s) / _DAY_S)
    growth = options.max_growth_per_day**days
    bounded = False

    stages: list[StageProfile] = []
    learned_stages, all_learned = previous.learned_stages, True
    for number, found in enumerate(figures.stages, start=1):
        all_learned = all_learned and found.calls >= options.learned_after
        if number <= previous.learned_stages:
            stage = _at_most(found.expected, growth * before.stage(number).total_tokens)
            bounded = bounded or stage != found.expected
        else:
            share = found.calls / options.learned_after
            stage = _towards(corrected[number - 1], found.expected, share)
            if all_learned:
                learned_stages = number
        stages.append(stage)
    seen = len(stages)
    for number in range(seen + 1, max(len(corrected), previous.learned_stages) + 1):
        learned = number <= previous.learned_stages
        stages.append(before.stage(number) if learned else corrected[number - 1])

    calls, calls_learned = _calls(declared, previous, figures, growth, options)
    bounded = bounded or (
        calls_learned
        and figures.calls_per_interaction is not None
        and calls < figures.calls_per_interaction.expected
    )
    profile = AppProfile(
        stages=tuple(stages),
        calls_per_interaction=calls,
        idle_timeout_s=declared.idle_timeout_s,
        agents={agent: _expected(of_agent) for agent, of_agent in figures.agents.items()},
        run_lengths=figures.run_lengths if calls_learned else (),
        believed_tokens=_finite(options.believed_tokens) if len(stages) > seen else None,
        seen_stages=max(seen, learned_stages),
        p99_calls=_grown(before.p99_calls, figures.p99_calls, growth),
        p99_tokens=_grown(before.p99_tokens, figures.p99_tokens, growth),
    )
    reason = f"{figures.calls} calls and {figures.interactions} ended interactions seen"
    if bounded:
        reason += f"; grows at most {options.max_growth_per_day:g} times a day"
    return InForce(profile, now_s, learned_stages, calls_learned, reason)


def _grown(before: float | None, found: float | None, growth: float) -> float | None:
    """Return the new value within the allowed growth, or the old one if there is no new value."""
    if found is None or before is None:
        return before if found is None else found
    return min(found, growth * before)


def _corrected(declared: AppProfile, figures: ProfileFigures) -> list[StageProfile]:
    """Return the declared stages, scaled in proportion to the size of the observed calls."""
    found = stated = 0.0
    for number, stage in enumerate(figures.stages, start=1):
        found += stage.calls * stage.expected.total_tokens
        stated += stage.calls * declared.stage(number).total_tokens
    number = max(len(declared.stages), len(figures.stages))
    return [_scaled(declared.stage(stage), found / stated) for stage in range(1, number + 1)]


def _calls(
    declared: AppProfile,
    previous: InForce,
    figures: ProfileFigures,
    growth: float,
    options: LearningOptions,
) -> tuple[float, bool]:
    """Return the expected calls of an interaction, and whether that value is learned."""
    before, stated = previous.profile.calls_per_interaction, declared.calls_per_interaction
    spread, ended = figures.calls_per_interaction, figures.interactions
    if spread is None or ended < options.min_samples:
        if previous.calls_learned:
            return before, True
        return min(stated, options.believed_calls), False
    found = max(1.0, spread.expected)
    if previous.calls_learned:
        return min(found, growth * before), True
    share = ended / options.learned_after
    between = found if found <= stated or share >= 1 else stated ** (1 - share) * found**share
    return between, share >= 1


def _towards(stated: StageProfile, found: StageProfile, share: float) -> StageProfile:
    """Return the observed stage if it is smaller or learned, else a value between both."""
    if share >= 1 or found.total_tokens <= stated.total_tokens * (1 + _ROUNDING):
        return found
    if stated.total_tokens < _LEAST_SHARE * found.total_tokens:
        stated = _scaled(found, _LEAST_SHARE)
    names = ("input_tokens", "system_tokens", "output_tokens")
    pairs = ((getattr(stated, name), getattr(found, name)) for name in names)
    inputs, system, output = (
        max(0.0, (a + _TOKEN) ** (1 - share) * (b + _TOKEN) ** share - _TOKEN) for a, b in pairs
    )
    return StageProfile(inputs, system, output, _cached_share(found) * (inputs + system))


def _cached_share(stage: StageProfile) -> float:
    """Return the cached share of a prompt, which is never declared."""
    prompt = stage.input_tokens + stage.system_tokens
    return min(1.0, stage.cached_tokens / prompt) if prompt else 0.0


def _at_most(stage: StageProfile, tokens: float) -> StageProfile:
    share = tokens / stage.total_tokens
    return stage if share >= 1 else _scaled(stage, share)


def _scaled(stage: StageProfile, factor: float) -> StageProfile:
    """Scale a stage within its bounds; a declared value may be anywhere between them."""
    factor = min(factor, MOST_TOKENS / _LEAST_TOKENS)
    tokens = (stage.input_tokens, stage.system_tokens, stage.output_tokens)
    inputs, system, output = (min(factor * count, MOST_TOKENS) for count in tokens)
    output = output if inputs + system + output > 0 else _LEAST_TOKENS
    return StageProfile(inputs, system, output, _cached_share(stage) * (inputs + system))


def _expected(figures: tuple[StageFigures, ...]) -> Stages:
    return tuple(stage.expected for stage in figures)


def _finite(tokens: float) -> float | None:
    return None if math.isinf(tokens) else tokens


def _differs(previous: InForce, found: InForce, share: float) -> bool:
    if previous.source != found.source or previous.learned_stages != found.learned_stages:
        return True
    one, other = previous.profile, found.profile
    if one.idle_timeout_s != other.idle_timeout_s or one.agents.keys() != other.agents.keys():
        return True
    pairs = [(one.calls_per_interaction, other.calls_per_interaction)]
    for before, after in ((one.p99_calls, other.p99_calls), (one.p99_tokens, other.p99_tokens)):
        if (before is None) != (after is None):
            return True
        pairs.append((before or 0.0, after or 0.0))
    for number in range(1, max(len(one.stages), len(other.stages)) + 1):
        a, b = one.stage(number), other.stage(number)
        if abs(_cached_share(a) - _cached_share(b)) > share:
            return True
        pairs.append((a.output_tokens + _TOKEN, b.output_tokens + _TOKEN))
        # System tokens weigh more than input tokens: a shift between the two is a change.
        for extra in (0.0, 1.0):
            before, after = (each.total_tokens + extra * each.system_tokens for each in (a, b))
            pairs.append((one.believed(number, before), other.believed(number, after)))
    return any(abs(b - a) > share * max(a, b) for a, b in pairs)
