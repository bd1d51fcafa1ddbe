"""Adjustments of the logits of one sequence: bias, penalties, and the ban on an early end.

Penalties are OpenAI's: a token that occurs ``count`` times in the output loses
``presence_penalty + count * frequency_penalty``; the prompt does not count. Only adjusted tokens
are listed, so a step moves as many numbers to the device as the output has distinct tokens, and
there is no table of the vocabulary per sequence.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fairserve.engine.torch.sampling_params import SamplingParams

Tokens = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


class LogitAdjustments:
    """Adjustments of one sequence; ``entries`` reads the new tokens of its output."""

    def __init__(self, params: SamplingParams) -> None:
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._min_tokens = params.min_tokens
        self._stop_token_ids = params.stop_token_ids
        self._ends: Tokens | None = None
        """Tokens that are banned before ``min_tokens``; None until known."""
        self._place: dict[int, int] = {}
        """Index of each token in the arrays below."""
        self._tokens: Tokens = np.zeros(16, dtype=np.int64)
        self._values: Values = np.zeros(16, dtype=np.float64)
        self._seen: set[int] = set()
        self._followed = 0
        """Number of output tokens that are already counted."""
        for token, bias in params.logit_bias.items():
            self._add(token, bias)

    def entries(
        self, tokens: list[int], prompt_tokens: int, end_ids: Iterable[int], vocabulary: int
    ) -> tuple[Tokens, Values]:
        """Return token ids of the ``vocabulary`` and the current adjustment of each one's logit.

        ``tokens`` are prompt and output, ``end_ids`` the model's own end tokens. Ids are unique,
        except that a banned one has an additional entry of -inf.
        """
        if self._presence or self._frequency:
            for token in tokens[prompt_tokens + self._followed :]:
                first = token not in self._seen
                self._seen.add(token)
                self._add(token, -self._frequency - (self._presence if first else 0.0))
                self._followed += 1
        ids = self._tokens[: len(self._place)]
        values = self._values[: len(self._place)]
        if len(tokens) - prompt_tokens < self._min_tokens:
            if self._ends is None:
                self._ends = np.array(sorted(self._stop_token_ids.union(end_ids)), dtype=np.int64)
            ids = np.concatenate((ids, self._ends))
            values = np.concatenate((values, np.full(len(self._ends), -np.inf)))
        inside = (ids >= 0) & (ids < vocabulary)
        return (ids, values) if inside.all() else (ids[inside], values[inside])

    def _add(self, token: int, value: float) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._values = np.concatenate((self._values, np.zeros_like(self._values)))
        self._tokens[place] = token
        self._values[place] += value
