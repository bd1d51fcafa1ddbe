"""Log probabilities of the chosen tokens, and of the most likely ones.

They are those of the model's own distribution, as vLLM returns them by default: before temperature,
penalties, bias, cuts and grammar. So even a token that is always cut has one, and the numbers of
two calls can be compared whatever their options.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fairserve.engine.torch.sequence import Sequence
from fairserve.engine.torch.transfer import to_device


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities of one output token."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """Most likely tokens at its position with theirs, best first, as many as requested."""
    text_offset: int
    """Characters of output that were complete before it, stop strings included."""


class LogprobReport:
    """Rows of one step whose sequences requested log probabilities.

    Created from unchanged logits [S, V]; it keeps a copy of its rows.
    """

    def __init__(self, logits: torch.Tensor, sequences: list[Sequence], rows: list[int]) -> None:
        self._rows = rows
        self._sequences = [sequences[row] for row in rows]
        self._counts = [sequence.params.logprobs or 0 for sequence in self._sequences]
        if len(rows) < len(sequences):
            self._index: torch.Tensor | None = to_device(np.array(rows), logits.device)
            logits = logits[self._index]
        else:
            self._index = None
        self._logprobs = torch.log_softmax(logits.float(), dim=-1)
        self._width = min(max(self._counts), logits.shape[-1])
        self._top = self._logprobs.topk(self._width)

    def packed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the whole report as float64 [L, 1 + 2 * width]; ``tokens`` [S] are the chosen ones."""
        chosen = tokens if self._index is None else tokens[self._index]
        own = self._logprobs.gather(-1, chosen.clamp(min=0)[:, None])
        return torch.cat(
            (own.double(), self._top.values.double(), self._top.indices.double()), dim=-1
        )

    def unpacked(self, numbers: list[float], tokens: list[int]) -> dict[int, TokenLogprobs]:
        """Return the report by row from ``packed`` as a flat list and the chosen tokens of all rows."""
        report = {}
        step = 1 + 2 * self._width
        for place, row in enumerate(self._rows):
            start = place * step + 1
            count = min(self._counts[place], self._width)
            ids = numbers[start + self._width : start + self._width + count]
            values = numbers[start : start + count]
            report[row] = TokenLogprobs(
                token_id=tokens[row],
                logprob=numbers[start - 1],
                top=tuple(zip(map(int, ids), values, strict=True)),
                text_offset=self._sequences[place].output.characters,
            )
        return report
