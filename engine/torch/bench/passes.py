"""Measures passes of our engine over a grid of prompts, batches, and tokens held by a batch.

A point of the grid is a batch of sequences that arrive together: their prompts are prefilled in
chunks, some beside decodes, and then they decode for a few steps. Every step is a measured pass.
Larger batches have prompts of one length, and of many lengths, which attend in several groups.
Prompts are random, so nothing is found in the prefix cache.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np

from fairserve.engine.simulated.pass_fit import MeasuredPass
from fairserve.engine.torch.bench.ours import OurEngine
from fairserve.engine.torch.bench.runner import RunnerLimits, RunnerRequest, TimedStep
from fairserve.engine.torch.page_pool import PAGE_TOKENS

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT_SHARES = (1 / 64, 1 / 8, 1)
"""Prompt tokens of each sequence, relative to the token budget of a pass."""
_SPREAD_FROM = 4
"""Smallest batch that is also measured with prompts of all lengths."""
_MOST_PROMPT_TOKENS = 20_480
_MOST_BUDGETS = 10
"""Maximum tokens of a point's prompts in budgets: more takes long and adds no information."""
DECODES = 6
"""Output tokens of each sequence."""


class PassGrid:
    """The grid on one engine; a point has the same steps in every round."""

    def __init__(self, runner: OurEngine, limits: RunnerLimits, vocabulary: int) -> None:
        self._runner, self._vocabulary = runner, vocabulary
        self._points = points(limits)
        self._random = np.random.default_rng(11)
        self._turns: list[list[MeasuredPass]] = []

    def turn(self) -> None:
        """Measure every point once."""
        self._turns.append(
            [
                _measured(step)
                for contexts in self._points
                for step in self._runner.record([self._request(each) for each in contexts])
            ]
        )

    def forget(self) -> None:
        """Drop the measurements so far, which were for warming up."""
        self._turns.clear()

    def medians(self) -> list[MeasuredPass]:
        """Return every pass with the median of its times."""
        return [_median(list(same)) for same in zip(*self._turns, strict=True)]

    def _request(self, tokens: int) -> RunnerRequest:
        prompt = self._random.integers(0, self._vocabulary, tokens).tolist()
        return RunnerRequest(tuple(prompt), DECODES)


def points(limits: RunnerLimits) -> list[tuple[int, ...]]:
    """Return the prompt tokens of each sequence for each batch."""
    budget = limits.token_budget
    found: list[tuple[int, ...]] = []
    for batch in BATCHES:
        found += [(max(1, round(share * budget)),) * batch for share in CONTEXT_SHARES]
        if batch >= _SPREAD_FROM:
            least, most = CONTEXT_SHARES[0] * budget, CONTEXT_SHARES[-1] * budget
            lengths = np.geomspace(max(1.0, least), most, batch).round().astype(int)
            found.append(tuple(np.random.default_rng(13).permutation(lengths).tolist()))
    return [contexts for contexts in found if _measurable(contexts, limits)]


def _measurable(contexts: tuple[int, ...], limits: RunnerLimits) -> bool:
    tokens = sum(contexts)
    return (
        len(contexts) <= limits.max_batch
        and tokens + len(contexts) * (DECODES + PAGE_TOKENS) <= limits.kv_tokens
        and tokens <= min(_MOST_PROMPT_TOKENS, _MOST_BUDGETS * limits.token_budget)
    )


def _measured(step: TimedStep) -> MeasuredPass:
    load = step.load
    return MeasuredPass(
        step.total_s, load.prefill_tokens, load.prefill_pairs, load.sequences, load.held_tokens
    )


def _median(same: list[MeasuredPass]) -> MeasuredPass:
    first = same[0]
    took_s = median(each.took_s for each in same)
    assert all(replace(each, took_s=first.took_s) == first for each in same)
    return replace(first, took_s=took_s)
