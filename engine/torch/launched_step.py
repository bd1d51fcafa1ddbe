"""A launched forward pass that may still run, and its tokens as input of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.sampler import Choice
from fairserve.engine.torch.sequence import PENDING
from fairserve.engine.torch.sequence import Sequence as TokenSequence

KNOWN = -1
"""Marks an input that is on the host, in place of a row of :class:`PendingTokens`."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingTokens:
    """Tokens chosen by the previous step, which stay on the device."""

    tokens: torch.Tensor
    """[S]"""
    rows: dict[str, int]
    """Row of each sequence id."""

    def resolve(self, input_ids: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        """Return ``input_ids`` [T] with the chosen tokens where ``sources`` [T] is not ``KNOWN``.

        ``INVALID`` becomes 0: its sequence will end, and is computed until then.
        """
        chosen = self.tokens[sources.clamp(min=0)].clamp(min=0)
        return torch.where(sources >= 0, chosen, input_ids)


def sources_of(decodes: Sequence[Chunk], pending: PendingTokens | None) -> npt.NDArray[Any] | None:
    """Return the row in ``pending`` of each decode's input, or ``KNOWN``; None if all are known."""
    if pending is None:
        return None
    rows = [
        pending.rows[chunk.sequence.sequence_id] if chunk.sequence.tokens[-1] == PENDING else KNOWN
        for chunk in decodes
    ]
    return np.array(rows, dtype=np.int64) if max(rows, default=KNOWN) != KNOWN else None


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """Effects of a launched pass."""

    sequences: list[TokenSequence]
    """Sequences with tokens in the pass."""
    sampled: list[TokenSequence]
    """Sequences that get a token, in the order of the rows of ``choice``."""
    computed_tokens: list[int]
    """Computed tokens of each of ``sampled``, this step included."""
    choice: Choice

    def pending(self) -> PendingTokens:
        """Return the step's tokens as input of the next step."""
        rows = {sequence.sequence_id: row for row, sequence in enumerate(self.sampled)}
        return PendingTokens(self.choice.tokens, rows)
