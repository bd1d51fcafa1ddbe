"""Prediction of a call's output tokens at its selection (VTC 4.4, B.3).

The three predictors of the paper: the mean of the client's last five outputs, the true length
(oracle), and the true length within +-50 %. Only a simulator knows the true length; it sets
``LocalCall.output_tokens``. A fourth, ``profile``, uses the prediction of the app's token profile,
the same number that the feeder reserves; it is part of the call.

Departure: the paper does not define the prediction for a client's first calls; here it is 0 until
one of them has ended. Weakness: the mean is poor for a client that alternates between short and
long outputs, and a client can manipulate it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Literal, Protocol

from fairserve.scheduling.base import LocalCall

Prediction = Literal["mean", "profile", "oracle", "noisy"]

_LAST = 5
_REMEMBERED_CLIENTS = 10_000
"""Maximum clients with a history; beyond that, those without an ended call for longest are dropped."""


class Predictor(Protocol):
    """Predictor of output lengths in tokens."""

    def check(self, call: LocalCall) -> None:
        """Raise ValueError if no prediction is possible for this call."""
        ...

    def predict(self, call: LocalCall) -> int:
        """Return the predicted output tokens of the call; 0 if nothing is known."""
        ...

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Record the generated tokens of a client's ended call."""
        ...


class MeanOfLast:
    """Predicts the mean of the client's last five outputs, rounded to whole tokens."""

    def __init__(self) -> None:
        self._outputs: dict[str, deque[int]] = {}

    def check(self, call: LocalCall) -> None:
        """Accept any call."""

    def predict(self, call: LocalCall) -> int:
        """Return the prediction; 0 for a client without an ended call."""
        outputs = self._outputs.get(call.client_id)
        return round(sum(outputs) / len(outputs)) if outputs else 0

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Record an output; a call that was cancelled before its first token is ignored."""
        if output_tokens:
            outputs = self._outputs.pop(client_id, None) or deque(maxlen=_LAST)
            outputs.append(output_tokens)
            self._outputs[client_id] = outputs
            if len(self._outputs) > _REMEMBERED_CLIENTS:
                del self._outputs[next(iter(self._outputs))]


class ByProfile:
    """Predicts the output length of the app's profile."""

    def check(self, call: LocalCall) -> None:
        """Accept any call."""

    def predict(self, call: LocalCall) -> int:
        """Return the profile's prediction; 0 if the call has none."""
        return min(call.expected_output_tokens, call.max_output_tokens)

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Do nothing: profiles are learned elsewhere."""


class Oracle:
    """Predicts the true length times a factor drawn from ``1 - noise`` to ``1 + noise`` per call.

    The factor depends only on the seed and the call's id, not on the order of arrivals.
    """

    def __init__(self, *, noise: float = 0.0, seed: int = 0) -> None:
        self._noise, self._seed = noise, seed

    def check(self, call: LocalCall) -> None:
        """Raise ValueError if the true length is missing."""
        if call.output_tokens is None:
            raise ValueError(
                f"call {call.call_id!r} has no output_tokens; an oracle needs the true length"
            )

    def predict(self, call: LocalCall) -> int:
        """Return the true length times the call's factor."""
        assert call.output_tokens is not None, "checked when the call arrived"
        if not self._noise:
            return call.output_tokens
        draw = random.Random(f"{self._seed}/{call.call_id}")  # noqa: S311  an error is no secret
        return round(call.output_tokens * draw.uniform(1 - self._noise, 1 + self._noise))

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Do nothing: this predictor does not learn."""


def make_predictor(kind: Prediction | None, *, noise: float, seed: int) -> Predictor | None:
    """Return the named predictor. Raises ValueError if unknown."""
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
