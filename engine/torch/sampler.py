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

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fairserve.engine.torch.logit_adjustments import Tokens, Values
from fairserve.engine.torch.logprobs import LogprobReport, TokenLogprobs
from fairserve.engine.torch.sequence import Sequence
from fairserve.engine.torch.token_draw import cut_min_p, cut_top_k, cut_top_p, draw
from fairserve.engine.torch.transfer import TransferArrival, to_device

_log = logging.getLogger(__name__)

INVALID = -1
"""Marks a missing token: the sequence cannot continue, for the reason of ``why_invalid``."""


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
        self._arrival = TransferArrival(packed)

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
    changes, failed = _changes(sequences, end_ids, logits.shape[-1])
    if failed:
        valid[to_device(np.array(failed), logits.device)] = False
    if changes:
        logits = _adjusted(logits, changes)
        # There may be no token left, or a sum that is no number.
        valid &= torch.isfinite(logits.amax(dim=-1))
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
    if sequence.problem:
        return sequence.problem
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


@dataclass(frozen=True, slots=True)
class _RowChange:
    """Changes of the logits of one row, in the order in which they apply."""

    row: int
    scaling: tuple[Tokens, Values, Values] | None
    """Token ids, the bias of each, and the repetition penalty that follows it."""
    allowed: tuple[int, ...]
    """The only possible tokens; empty: all."""
    entries: tuple[Tokens, Values] | None
    """Token ids, and what is added to the logit of each."""
    mask: npt.NDArray[np.int32] | None
    """Bits of the tokens that the grammar allows."""


def _changes(
    sequences: list[Sequence], end_ids: Collection[int], vocabulary: int
) -> tuple[list[_RowChange], list[int]]:
    """Return the changes of all rows that have some, and the rows whose changes cannot be computed.

    An error ends its sequence, and no other of the batch.
    """
    changes: list[_RowChange] = []
    failed: list[int] = []
    for row, sequence in enumerate(sequences):
        if sequence.adjustments is None and sequence.constraint is None:
            continue
        try:
            changes.append(_change(row, sequence, end_ids, vocabulary))
        except Exception as error:
            _log.exception("the sampling options of %s failed", sequence.sequence_id)
            sequence.problem = f"the sampling options cannot be applied: {error}"
            failed.append(row)
    return changes, failed


def _change(row: int, sequence: Sequence, end_ids: Collection[int], vocabulary: int) -> _RowChange:
    adjustments, constraint = sequence.adjustments, sequence.constraint
    scaling = entries = mask = None
    allowed: tuple[int, ...] = ()
    if adjustments is not None:
        if adjustments.scales:
            scaling = adjustments.scaling(sequence.tokens, vocabulary)
        allowed = sequence.params.allowed_token_ids
        entries = adjustments.entries(sequence.tokens, sequence.prompt_tokens, end_ids, vocabulary)
    if constraint is not None:
        mask = constraint.allowed(sequence.tokens[sequence.prompt_tokens :])
    return _RowChange(row, scaling, allowed, entries, mask)


def _rule_out_others(logits: torch.Tensor, limited: list[_RowChange]) -> None:
    """Leave only the allowed tokens of some rows, in place."""
    rows = np.repeat([change.row for change in limited], [len(each.allowed) for each in limited])
    tokens = np.concatenate([np.array(each.allowed, dtype=np.int64) for each in limited])
    at = to_device(np.stack((rows, tokens)), logits.device)
    kept = logits[at[0], at[1]]
    logits[to_device(np.array([each.row for each in limited]), logits.device)] = -torch.inf
    logits[at[0], at[1]] = kept


def _scale(logits: torch.Tensor, scaled: list[tuple[int, Tokens, Values, Values]]) -> None:
    """Add the bias and apply the repetition penalty to some tokens of some rows, in place."""
    rows = np.repeat([row for row, *_ in scaled], [len(ids) for _, ids, *_ in scaled])
    parts = [np.concatenate(part) for part in list(zip(*scaled, strict=True))[1:]]
    moved = to_device(np.stack((rows, *parts)).astype(np.float64), logits.device)
    at = (moved[0].long(), moved[1].long())
    found, factors = logits[at] + moved[2].float(), moved[3].float()
    logits[at] = torch.where(found > 0, found / factors, found * factors)


def _add(logits: torch.Tensor, added: list[tuple[int, Tokens, Values]]) -> None:
    """Add values to some tokens of some rows, in place."""
    rows = np.repeat([row for row, _, _ in added], [len(ids) for _, ids, _ in added])
    table = np.stack(
        (
            rows.astype(np.float64),
            np.concatenate([ids for _, ids, _ in added]),
            np.concatenate([values for _, _, values in added]),
        )
    )
    moved = to_device(table, logits.device)
    at = (moved[0].long(), moved[1].long())
    logits.index_put_(at, moved[2].float(), accumulate=True)


def _forbid(logits: torch.Tensor, masks: list[tuple[int, npt.NDArray[np.int32]]]) -> None:
    """Rule out the tokens that the masks of some rows lack, in place."""
    words = to_device(np.stack([mask for _, mask in masks]), logits.device)
    shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
    forbidden = ((words[..., None] >> shifts) & 1 == 0).flatten(1)[:, : logits.shape[-1]]
    index = to_device(np.array([row for row, _ in masks]), logits.device)
    logits[index] = logits[index].masked_fill(forbidden, -torch.inf)


def _adjusted(logits: torch.Tensor, changes: list[_RowChange]) -> torch.Tensor:
    """Return the logits with bias, penalties and grammars, in float32; may change them in place."""
    logits = logits.float()
    if scaled := [(each.row, *each.scaling) for each in changes if each.scaling is not None]:
        _scale(logits, scaled)
    if limited := [each for each in changes if each.allowed]:
        _rule_out_others(logits, limited)
    if added := [(each.row, *each.entries) for each in changes if each.entries is not None]:
        _add(logits, added)
    if masks := [(each.row, each.mask) for each in changes if each.mask is not None]:
        _forbid(logits, masks)
    return logits
