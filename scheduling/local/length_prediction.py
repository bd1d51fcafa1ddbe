"""How many tokens a call will generate, foretold when it is selected (VTC 4.4, B.3).

The three predictors of the paper: the mean of the client's last five outputs, the true length
(oracle), and the true length within +-50 %. The true length is known only to a simulator, which puts
it into ``LocalCall.output_tokens``. A fourth, ``profile``, takes what the app's token profile says of
such a call, the very number that the feeder reserves; the call brings it.

Departure: the paper does not say what a client's first calls are predicted to generate; here nothing
is predicted until one of them has ended. Weakness: the mean follows a client that alternates between
short and long outputs badly, and a client can steer it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Literal, Protocol

from fairserve.scheduling.base import LocalCall

Prediction = Literal["mean", "profile", "oracle", "noisy"]

_LAST = 5
_REMEMBERED_CLIENTS = 10_000
"""Histories of clients that have not ended a call for longest are forgotten beyond this many."""


class Predictor(Protocol):
    """Foretells output lengths in tokens."""

    def check(self, call: LocalCall) -> None:
        """Raises ValueError if nothing can be foretold about such a call."""
        ...

    def predict(self, call: LocalCall) -> int:
        """Tokens that the call will generate; 0 where nothing is known."""
        ...

    def ended(self, client_id: str, output_tokens: int) -> None:
        """A call of the client generated so many tokens."""
        ...


class MeanOfLast:
    """The mean of the client's last five outputs, rounded to whole tokens."""

    def __init__(self) -> None:
        self._outputs: dict[str, deque[int]] = {}

    def check(self, call: LocalCall) -> None:
        """Any call will do."""

    def predict(self, call: LocalCall) -> int:
        """0 for a client of whom no call has ended."""
        outputs = self._outputs.get(call.client_id)
        return round(sum(outputs) / len(outputs)) if outputs else 0

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Remember it. A call that was cancelled before its first token tells nothing."""
        if output_tokens:
            outputs = self._outputs.pop(client_id, None) or deque(maxlen=_LAST)
            outputs.append(output_tokens)
            self._outputs[client_id] = outputs
            if len(self._outputs) > _REMEMBERED_CLIENTS:
                del self._outputs[next(iter(self._outputs))]


class ByProfile:
    """What the app's profile says."""

    def check(self, call: LocalCall) -> None:
        """Any call will do."""

    def predict(self, call: LocalCall) -> int:
        """0 for a call of which nobody said anything."""
        return min(call.expected_output_tokens, call.max_output_tokens)

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Profiles are learned elsewhere."""


class Oracle:
    """The true length, times a factor drawn from ``1 - noise`` to ``1 + noise`` for each call.

    The factor depends only on the seed and the call's id, not on the order in which calls come.
    """

    def __init__(self, *, noise: float = 0.0, seed: int = 0) -> None:
        self._noise, self._seed = noise, seed

    def check(self, call: LocalCall) -> None:
        """Raises ValueError if the true length is not given."""
        if call.output_tokens is None:
            raise ValueError(
                f"call {call.call_id!r} has no output_tokens; an oracle needs the true length"
            )

    def predict(self, call: LocalCall) -> int:
        """The true length, or near it."""
        assert call.output_tokens is not None, "checked when the call arrived"
        if not self._noise:
            return call.output_tokens
        draw = random.Random(f"{self._seed}/{call.call_id}")  # noqa: S311  an error is no secret
        return round(call.output_tokens * draw.uniform(1 - self._noise, 1 + self._noise))

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Nothing is learned."""


def make_predictor(kind: Prediction | None, *, noise: float, seed: int) -> Predictor | None:
    """The predictor of that name. Raises ValueError if it is unknown."""
    if kind is None:
        return None
    if kind == "mean":
        return MeanOfLast()
    if kind == "profile":
        return ByProfile()
    if kind == "oracle":
        return Oracle()
    if kind == "noisy":
        return Oracle(noise=noise, seed=seed)
    raise ValueError(f"predict is {kind!r}; allowed: None, 'mean', 'profile', 'oracle', 'noisy'")
