"""Chooses the next token of each sequence from its logits.

All work is done on the logits' device, and the host waits once, when it reads one packed tensor; a
GPU may already have the next step by then. Sampling inverts the cumulative distribution at one
random number, which comes from the sequence's own generator: a seed determines the output
regardless of the rest of the batch. (Floating-point sums differ slightly between batch shapes; a
token changes only if that moves it across the drawn number.)

The order is vLLM's: bias, penalties and grammar, temperature, min_p, top_k, top_p. A greedy batch
only computes one maximum.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch

from fairserve.engine.torch.logit_adjustments import Tokens, Values
from fairserve.engine.torch.logprobs import LogprobReport, TokenLogprobs
from fairserve.engine.torch.sequence import Sequence
from fairserve.engine.torch.token_draw import cut_min_p, cut_top_k, cut_top_p, draw
from fairserve.engine.torch.transfer import Arrival, to_device

INVALID = -1
"""Marks a missing token: the logits are not all finite, or no token is allowed."""


class Sampled(NamedTuple):
    """The next token of a sequence, or ``INVALID``."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    """Log probabilities, if the sequence requested them."""


class Choice:
    """Tokens chosen by a step, on their device and in transfer to the host."""

    def __init__(self, tokens: torch.Tensor, report: LogprobReport | None) -> None:
        self.tokens = tokens
        """Tokens [S], a row per sequence; ``INVALID`` where there is none."""
        self._report = report
        packed = tokens
        if report is not None:
            packed = torch.cat((tokens.double(), report.packed(tokens).flatten()))
        self._arrival = Arrival(packed)

    def read(self) -> list[Sampled]:
        """Wait for the tokens and return them. Call it before they are added to their sequences."""
        numbers = self._arrival.wait()
        if self._report is None:
            return [Sampled(token) for token in numbers]
        count = len(self.tokens)
        chosen = [int(number) for number in numbers[:count]]
        report = self._report.unpacked(numbers[count:], chosen)
        return [Sampled(token, report.get(row)) for row, token in enumerate(chosen)]


def sample(
    logits: torch.Tensor, sequences: list[Sequence], end_ids: Collection[int] = ()
) -> Choice:
    """Choose a token per row of ``logits`` [S, vocabulary]; ``end_ids`` are the model's end tokens.

    May change ``logits`` in place. Draws one number from the generator of every sequence that is
    not greedy.
    """
    # A non-finite number makes the sum non-finite, and no sum of finite logits overflows.
    valid = torch.isfinite(logits.sum(dim=-1, dtype=torch.float32))
    asked = [row for row, each in enumerate(sequences) if each.params.logprobs is not None]
    report = LogprobReport(logits, sequences, asked) if asked else None
    adjusted = _adjusted(logits, sequences, end_ids)
    if adjusted is not None:
        logits = adjusted
        # There may be no token left.
        valid &= logits.amax(dim=-1) > -torch.inf
    random = [row for row, each in enumerate(sequences) if not each.params.is_greedy]
    if len(random) < len(sequences):
        tokens = logits.max(dim=-1).indices
    else:
        tokens = torch.empty(len(sequences), dtype=torch.long, device=logits.device)
    if random:
        rows, drawn = _drawn(logits, sequences, random)
        tokens[rows] = drawn
    return Choice(tokens.masked_fill(~valid, INVALID), report)


def why_invalid(sequence: Sequence) -> str:
    """Return the error message for a sequence that got ``INVALID``."""
    if sequence.constraint is not None and sequence.constraint.problem:
        return sequence.constraint.problem
    return "the model gave logits that are not finite, or all of its tokens are ruled out"


def _drawn(
    logits: torch.Tensor, sequences: list[Sequence], rows: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows [R] in some order, and their tokens [R]."""
    params = {row: sequences[row].params for row in rows}
    with_k = [row for row in rows if params[row].top_k > 0]
    only_p = [row for row in rows if params[row].top_k <= 0 and params[row].top_p < 1]
    if with_k or only_p:
        # Each cut applies to a slice.
        cut = {*with_k, *only_p}
        rows = with_k + only_p + [row for row in rows if row not in cut]
    numbers = np.array(
        [
            rows,
            [params[row].temperature for row in rows],
            [sequences[row].random.random() for row in rows],
            [params[row].min_p for row in rows],
            [params[row].top_k for row in rows],
            [params[row].top_p for row in rows],
        ]
    )
    columns = to_device(numbers, logits.device)[..., None]
    index = columns[0, :, 0].long()
    if rows != list(range(len(sequences))):
        logits = logits[index]
    weights = torch.softmax(logits.float() / columns[1].float(), dim=-1)
    if any(each.min_p for each in params.values()):
        cut_min_p(weights, columns[3])
    if with_k:
        span = slice(0, len(with_k))
        top_p = columns[5, span] if any(params[row].top_p < 1 for row in with_k) else None
        largest_k = max(params[row].top_k for row in with_k)
        cut_top_k(weights[span], columns[4, span].long(), top_p, largest_k)
    if only_p:
        span = slice(len(with_k), len(with_k) + len(only_p))
        cut_top_p(weights[span], columns[5, span])
    return index, draw(weights, columns[2, :, 0])


def _rule_out_others(logits: torch.Tensor, limited: list[tuple[int, tuple[int, ...]]]) -> None:
    """Leave only the allowed tokens of some rows, in place."""
    rows = np.repeat([row for row, _ in limited], [len(ids) for _, ids in limited])
    tokens = np.concatenate([np.array(ids, dtype=np.int64) for _, ids in limited])
    at = to_device(np.stack((rows, tokens)), logits.device)
    kept = logits[at[0], at[1]]
    logits[to_device(np.array([row for row, _ in limited]), logits.device)] = -torch.inf
    logits[at[0], at[1]] = kept


def _scale(logits: torch.Tensor, scaled: list[tuple[int, Tokens, Values, Values]]) -> None:
    """Add the bias and apply the repetition penalty to some tokens of some rows, in place."""
    rows = np.repeat([row for row, *_ in scaled], [len(ids) for _, ids, *_ in scaled])
    parts = [np.concatenate(part) for part in list(zip(*scaled, strict=True))[1:]]
    moved = to_device(np.stack((rows, *parts)).astype(np.float64), logits.device)
    at = (moved[0].long(), moved[1].long())
    found, factors = logits[at] + moved[2].float(), moved[3].float()
    logits[at] = torch.where(found > 0, found / factors, found * factors)


def _adjusted(
    logits: torch.Tensor, sequences: list[Sequence], end_ids: Collection[int]
) -> torch.Tensor | None:
    """Return the logits with bias, penalties and grammars, in float32; None if there are none."""
    changes = [
        (row, each, each.adjustments)
        for row, each in enumerate(sequences)
        if each.adjustments is not None
    ]
    constrained = [
        (row, each, each.constraint)
        for row, each in enumerate(sequences)
        if each.constraint is not None
    ]
    if not changes and not constrained:
        return None
    logits = logits.float()
    vocabulary = logits.shape[-1]
    scaled = [
        (row, *adjustments.scaling(each.tokens, vocabulary))
        for row, each, adjustments in changes
        if adjustments.scales
    ]
    if scaled:
        _scale(logits, scaled)
    limited = [(row, each.params.allowed_token_ids) for row, each, _ in changes]
    if limited := [(row, ids) for row, ids in limited if ids]:
        _rule_out_others(logits, limited)
    if changes:
        entries = [
            (row, *adjustments.entries(each.tokens, each.prompt_tokens, end_ids, vocabulary))
            for row, each, adjustments in changes
        ]
        rows = np.repeat([row for row, _, _ in entries], [len(ids) for _, ids, _ in entries])
        table = np.stack(
            (
                rows.astype(np.float64),
                np.concatenate([ids for _, ids, _ in entries]),
                np.concatenate([values for _, _, values in entries]),
            )
        )
        moved = to_device(table, logits.device)
        at = (moved[0].long(), moved[1].long())
        logits.index_put_(at, moved[2].float(), accumulate=True)
    if constrained:
        bits = np.stack(
            [
                each.allowed(sequence.tokens[sequence.prompt_tokens :])
                for _, sequence, each in constrained
            ]
        )
        words = to_device(bits, logits.device)
        shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
        forbidden = ((words[..., None] >> shifts) & 1 == 0).flatten(1)[:, :vocabulary]
        index = to_device(np.array([row for row, _, _ in constrained]), logits.device)
        logits[index] = logits[index].masked_fill(forbidden, -torch.inf)
    return logits
