"""Adjustments of the logits of one sequence: bias, penalties, bad words, and the ban on an early end.

Penalties are OpenAI's: a token that occurs ``count`` times in the output loses
``presence_penalty + count * frequency_penalty``; the prompt does not count. A repetition penalty is
CTRL's, over prompt and output, and comes after the bias and before these two, as in vLLM. Only
adjusted tokens are listed, so a step moves as many numbers to the device as the output (with a
repetition penalty: prompt and output) has distinct tokens, and there is no table of the vocabulary
per sequence.
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
        self._bad_words = params.bad_words
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
        self._repetition = params.repetition_penalty
        self._early_bias = dict(params.logit_bias) if params.repeats_matter else {}
        """Bias that is added before the repetition penalty."""
        self._repeated: set[int] = set()
        self._read = 0
        """Number of tokens of prompt and output in the set."""
        self._scaled: tuple[Tokens, Values, Values] | None = None
        for token, bias in params.logit_bias.items():
            if not params.repeats_matter:
                self._add(token, bias)

    @property
    def scales(self) -> bool:
        """Return whether there is a repetition penalty, which :meth:`scaling` has."""
        return self._repetition != 1

    def scaling(self, tokens: list[int], vocabulary: int) -> tuple[Tokens, Values, Values]:
        """Return unique token ids, the bias of each one's logit, and the penalty that follows it.

        ``tokens`` are prompt and output. Costs O(distinct tokens) after a new one, else O(1).
        """
        before = len(self._repeated)
        self._repeated.update(tokens[self._read :])
        self._read = len(tokens)
        if self._scaled is None or len(self._repeated) > before:
            repeated = [token for token in self._repeated if token < vocabulary]
            biased = [token for token in self._early_bias if token < vocabulary]
            alone = [token for token in biased if token not in self._repeated]
            ids = np.array(repeated + alone, dtype=np.int64)
            bias, factors = np.zeros(len(ids)), np.ones(len(ids))
            factors[: len(repeated)] = self._repetition
            if biased:
                bias[:] = [self._early_bias.get(token, 0.0) for token in ids.tolist()]
            self._scaled = ids, bias, factors
        return self._scaled

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
            ids, values = _with_banned(ids, values, self._ends)
        if self._bad_words is not None:
            banned = self._bad_words.banned(tokens, prompt_tokens)
            if banned:
                ids, values = _with_banned(ids, values, np.array(sorted(banned), dtype=np.int64))
        inside = (ids >= 0) & (ids < vocabulary)
        return (ids, values) if inside.all() else (ids[inside], values[inside])

    def _add(self, token: int, value: float) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._values = np.concatenate((self._values, np.zeros_like(self._values)))
        self._tokens[place] = token
        self._values[place] += value


def _with_banned(ids: Tokens, values: Values, banned: Tokens) -> tuple[Tokens, Values]:
    return np.concatenate((ids, banned)), np.concatenate((values, np.full(len(banned), -np.inf)))
