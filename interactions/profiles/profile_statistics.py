"""Observed token use of an app's calls: figures by stage, by agent, and per interaction.

All served calls count, however they ended: an app that cancels its calls just before their end has
used the tokens. Recent calls weigh more; the weight halves with each half-life of age. Calls are
not weighed by user: an app whose typical call is the mean of its calls pays 1 per call on average,
and any weighing by user could be manipulated with invented users.

The *expected* value is the mean of the values, capped at the 98th percentile. The median is
reported, too, but is no substitute: the agents of an app alternate at a stage, a tenth of the calls
may be ten times as large as the others, and the median of such calls is unrelated to their sum and
jumps between the kinds (recorded in AutoCodeRover at stage 10: median 620 tokens, mean 1,883). A
cap at the 90th percentile would drop the payment for an app's largest calls from its share (an
eighth for that app; 1.5 % with the 98th).

Cost: O(calls log calls) in numpy for the calls of one app.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairserve.interactions.profiles.profile import MAX_STAGES, StageProfile

Floats = npt.NDArray[np.float64]

MAX_AGENTS = 32
"""Maximum number of agents with separate figures; those with the most calls are kept."""
RUN_LENGTHS = 10
"""Number of quantiles of the interaction length."""
LONG_RUNS_AFTER = 50
"""Minimum ended interactions for the 99th percentiles."""
_LONG = 0.99
_OUTLIERS = 0.98
_DIGITS = 6
"""Decimal digits of expectations, so that the order of summation does not change the profile."""
_TINY = float(np.finfo(float).tiny)


class CallSeen(NamedTuple):
    """A call that was served completely or in part."""

    stage: int
    """Stage of the call, from 1."""
    agent: str | None
    input_tokens: int
    system_tokens: int
    output_tokens: int
    """Output tokens over all samples."""
    age_s: float
    """Seconds since the call was accepted."""
    cached_tokens: int = 0
    """Prompt tokens that the worker had cached."""

    @property
    def tokens(self) -> int:
        """Return all tokens of the call."""
        return self.input_tokens + self.system_tokens + self.output_tokens


class RunSeen(NamedTuple):
    """An interaction with at least one served call."""

    calls: int
    """Number of calls so far."""
    ended: bool
    """True if the run ended by itself: complete, cancelled by its client, or idle for too long.
    Others
    are active or were cut off, and would have had more calls."""
    age_s: float
    """Seconds since the end of the run, or since its last call."""
    tokens: int = 0
    """Tokens used by the calls so far."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles of weighted values."""

    expected: float
    """Mean of the values, capped at their 98th percentile."""
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Token figures of the calls at one stage."""

    calls: int
    """Number of calls in these figures, including later stages where a stage has too few."""
    input_tokens: Spread
    system_tokens: Spread
    output_tokens: Spread
    cached_tokens: Spread

    @property
    def expected(self) -> StageProfile:
        """Return the figures as a stage of a profile."""
        found = (self.input_tokens, self.system_tokens, self.output_tokens, self.cached_tokens)
        inputs, system, output, cached = (spread.expected for spread in found)
        output = output if inputs + system + output > 0 else 1.0
        return StageProfile(inputs, system, output, min(cached, inputs + system))


@dataclass(frozen=True, slots=True)
class ProfileFigures:
    """Observed use of an app's calls."""

    calls: int
    interactions: int
    """Number of ended interactions."""
    stages: tuple[StageFigures, ...]
    """Figures from stage 1 on, without trailing stages that have too few calls; may be empty."""
    agents: Mapping[str, tuple[StageFigures, ...]]
    calls_per_interaction: Spread | None
    """None if no interaction has ended."""
    run_lengths: tuple[float, ...]
    """Quantiles of the calls per interaction, each for an equal share of interactions, ascending."""
    p99_calls: float | None = None
    """99th percentile of calls per interaction; None below ``LONG_RUNS_AFTER`` interactions."""
    p99_tokens: float | None = None
    """99th percentile of tokens per interaction; None below ``LONG_RUNS_AFTER`` interactions."""


def figures_of(
    calls: Sequence[CallSeen],
    runs: Sequence[RunSeen],
    *,
    min_samples: int,
    half_life_s: float,
) -> ProfileFigures:
    """Return the figures of an app; stages and agents need at least ``min_samples`` calls."""
    stages, agents = _of_calls(calls, min_samples, half_life_s)
    lengths, shares = _lengths(runs, half_life_s)
    any_ended = len(lengths) > 0
    interactions = sum(run.ended for run in runs)
    p99_calls = p99_tokens = None
    if interactions >= LONG_RUNS_AFTER:
        ended = [run for run in runs if run.ended]
        tokens = np.array([run.tokens for run in ended], float)
        (p99_calls,) = _quantiles(lengths, shares, (_LONG,))
        (p99_tokens,) = _quantiles(tokens, _weights(ended, half_life_s), (_LONG,))
    return ProfileFigures(
        calls=len(calls),
        interactions=interactions,
        stages=stages,
        agents=agents,
        calls_per_interaction=_spread(lengths, shares) if any_ended else None,
        run_lengths=run_lengths(lengths, shares) if any_ended else (),
        p99_calls=p99_calls,
        p99_tokens=p99_tokens,
    )


def run_lengths(lengths: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> tuple[float, ...]:
    """Return ``RUN_LENGTHS`` quantiles of these interaction lengths, each for an equal share."""
    values = np.asarray(lengths, float)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    shares = [(number + 0.5) / RUN_LENGTHS for number in range(RUN_LENGTHS)]
    return tuple(_quantiles(values, weights, shares))


def _of_calls(
    calls: Sequence[CallSeen], min_samples: int, half_life_s: float
) -> tuple[tuple[StageFigures, ...], dict[str, tuple[StageFigures, ...]]]:
    """Return the figures by stage, and by agent and stage."""
    if not calls:
        return (), {}
    weights = _weights(calls, half_life_s)
    stage_of = np.array([min(max(call.stage, 1), MAX_STAGES) for call in calls])
    tokens = np.array(
        [
            (call.input_tokens, call.system_tokens, call.output_tokens, call.cached_tokens)
            for call in calls
        ],
        float,
    )

    def by_stage(which: npt.NDArray[np.bool_]) -> tuple[StageFigures, ...]:
        return _stages(stage_of[which], tokens[which], weights[which], min_samples)

    agents: dict[str, tuple[StageFigures, ...]] = {}
    named = np.array([call.agent or "" for call in calls])
    for agent, number in Counter(named.tolist()).most_common(MAX_AGENTS + 1):
        if agent and number >= min_samples and len(agents) < MAX_AGENTS:
            agents[agent] = by_stage(named == agent)
    return by_stage(np.ones(len(calls), bool)), agents


def _weights(seen: Sequence[CallSeen] | Sequence[RunSeen], half_life_s: float) -> Floats:
    ages = np.array([max(each.age_s, 0.0) for each in seen])
    return np.maximum(np.exp2(-ages / half_life_s), _TINY)


def _stages(
    stage_of: npt.NDArray[np.int64], tokens: Floats, weights: Floats, min_samples: int
) -> tuple[StageFigures, ...]:
    order = np.argsort(stage_of, kind="stable")
    tokens, weights = tokens[order], weights[order]
    begins = np.searchsorted(stage_of[order], np.arange(1, MAX_STAGES + 2)).tolist()
    found: list[StageFigures] = []
    for begin, end in pairwise(begins):
        if len(weights) - begin < min_samples:
            break
        part = slice(begin, max(end, begin + min_samples))
        spreads = (_spread(tokens[part, kind], weights[part]) for kind in range(4))
        found.append(StageFigures(part.stop - part.start, *spreads))
    return tuple(found)


def _lengths(runs: Sequence[RunSeen], half_life_s: float) -> tuple[Floats, Floats]:
    """Return the observed interaction lengths, ascending, and the probability of each.

    This is the Kaplan-Meier estimator: of the interactions with at least this many calls, the share
    that ended with exactly this many. Unfinished interactions count for the lengths that they have
    reached; otherwise the short ones, which end first, would dominate.
    """
    ended = np.array([run.ended for run in runs], bool)
    if not ended.any():
        return np.empty(0), np.empty(0)
    weights = _weights(runs, half_life_s)
    calls = np.array([run.calls for run in runs])
    lengths = np.unique(calls[ended])
    order = np.argsort(calls, kind="stable")
    reached = np.cumsum(weights[order][::-1])[::-1][np.searchsorted(calls[order], lengths)]
    at = np.searchsorted(lengths, calls[ended])
    ending = np.bincount(at, weights[ended], len(lengths)) / reached
    going_on = np.concatenate(([1.0], np.cumprod(1 - ending)))
    return lengths.astype(float), np.maximum(going_on[:-1] - going_on[1:], _TINY)


def _spread(values: Floats, weights: Floats) -> Spread:
    median, p90, most = _quantiles(values, weights, (0.5, 0.9, _OUTLIERS))
    expected = float(np.average(np.minimum(values, most), weights=weights))
    return Spread(round(expected, _DIGITS), median, p90)


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    """Return for each share the smallest value with at least that share of the weight up to it."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    at = np.searchsorted(below, np.asarray(shares) * below[-1])
    return [float(value) for value in values[order][np.minimum(at, len(values) - 1)]]
