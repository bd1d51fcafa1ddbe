"""A forward pass that may still run, and its tokens as the input of the next one."""

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
"""In place of a row of :class:`PendingTokens`: the input is on the host."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingTokens:
    """What the step before chose. It never leaves the device on this way."""

    tokens: torch.Tensor
    """[S]"""
    rows: dict[str, int]
    """By sequence id."""

    def resolve(self, input_ids: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        """``input_ids`` [T] with the chosen tokens where ``sources`` [T] is not ``KNOWN``.

        What is no token (``INVALID``) becomes 0: its sequence will end, and is computed till then.
        """
        chosen = self.tokens[sources.clamp(min=0)].clamp(min=0)
        return torch.where(sources >= 0, chosen, input_ids)


def sources_of(decodes: Sequence[Chunk], pending: PendingTokens | None) -> npt.NDArray[Any] | None:
    """The row in ``pending`` of each decode's input, or ``KNOWN``; None if all are known."""
    if pending is None:
        return None
    rows = [
        pending.rows[chunk.sequence.sequence_id] if chunk.sequence.tokens[-1] == PENDING else KNOWN
        for chunk in decodes
    ]
    return np.array(rows, dtype=np.int64) if max(rows, default=KNOWN) != KNOWN else None


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """What a pass will have done."""

    sequences: list[TokenSequence]
    """All that it computes something of."""
    sampled: list[TokenSequence]
    """Those that get a token, in the order of the rows of ``choice``."""
    computed_tokens: list[int]
    """Of each of ``sampled``, with this step."""
    choice: Choice

    def pending(self) -> PendingTokens:
        """Its tokens as the input of the next step."""
        rows = {sequence.sequence_id: row for row, sequence in enumerate(self.sampled)}
        return PendingTokens(self.choice.tokens, rows)
