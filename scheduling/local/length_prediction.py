"""Prediction of a call's output tokens at its selection (VTC 4.4, B.3).

``mean`` is the mean of the client's last five outputs, as in the paper. ``profile`` uses the
prediction of the app's token profile, the same number that the feeder reserves; it is part of the
call. The paper's oracles need the true length: :mod:`fairserve.benchmarks.policies.vtc_oracle`.

Departure: the paper does not define the prediction for a client's first calls; here it is 0 until
one of them has ended. Weakness: the mean is poor for a client that alternates between short and
long outputs, and a client can manipulate it.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

from fairserve.scheduling.base import LocalCall

Prediction = Literal["mean", "profile"]

_LAST = 5
_REMEMBERED_CLIENTS = 10_000
"""Maximum clients with a history; beyond that, those without an ended call for longest are dropped."""


class Predictor(Protocol):
    """Predictor of output lengths in tokens."""

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

    def predict(self, call: LocalCall) -> int:
        """Return the profile's prediction; 0 if the call has none."""
        return min(call.expected_output_tokens, call.max_output_tokens)

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Do nothing: profiles are learned elsewhere."""


def make_predictor(kind: Prediction | None) -> Predictor | None:
    """Return the named predictor. Raises ValueError if unknown."""
    if kind is None:
        return None
    if kind == "mean":
        return MeanOfLast()
    if kind == "profile":
        return ByProfile()
    raise ValueError(f"predict is {kind!r}; allowed: None, 'mean', 'profile'")
