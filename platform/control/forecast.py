"""Forecast of the output of calls whose workers report no progress.

A call that is not streamed reports its output at its end. If it is cancelled or fails after its start,
its output so far is estimated from a speed: output tokens of a sequence a second, from start to end, as
a mean over completed calls, at least one token a sample. The speed is that of the client's own calls at
the model; until they have ``OWN_TOKENS``, that of all calls at the model; until these have
``ALL_TOKENS``, the call's expected output counts. A call has the weight of its output, so that many
short calls, which are slow because of their prompts, do not move a mean.

Weakness: a client that completes long prompts with short answers is charged less for what it cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.control.record import values_of

MIN_S = 0.001
"""Shortest time in seconds from which a speed is computed."""
OWN_TOKENS = 64
"""Output tokens of a sequence from which the mean of a client's own calls counts."""
ALL_TOKENS = 512
"""The same for the mean of all calls at a model."""
REMEMBERED = 8
"""Multiple of these that a mean remembers: later calls replace the share of earlier ones."""
MAX_CLIENTS = 10_000
"""Clients at models whose means are kept: of the tenant with most, those with the latest calls."""


@dataclass(slots=True)
class _Speed:
    """A mean of speeds, weighted by output tokens."""

    needed_tokens: int
    tokens: float = 0.0
    tokens_per_s: float = 0.0

    @property
    def known(self) -> bool:
        return self.tokens >= self.needed_tokens

    def add(self, tokens: float, running_s: float) -> None:
        most = REMEMBERED * self.needed_tokens
        weight = min(tokens, most)
        self.tokens = min(self.tokens + weight, most)
        self.tokens_per_s += (tokens / running_s - self.tokens_per_s) * weight / self.tokens


_SPEED = values_of(_Speed)


class OutputForecast:
    """Speeds by model pool, and by client there. O(log tenants) a call."""

    def __init__(self) -> None:
        self._all: dict[str, _Speed] = {}
        self._own: SharedTable[tuple[str, ClientPath], _Speed] = SharedTable(MAX_CLIENTS)

    def completed(self, call: Call, output_tokens: int, running_s: float) -> None:
        """Add a completed call, which ran this many seconds."""
        if output_tokens <= 0 or running_s < MIN_S:
            return
        key = (call.pool, call.client)
        own = self._own.get(key)
        if own is None:
            self._own.put((call.tenant,), key, own := _Speed(OWN_TOKENS))
        self._own.touch(key)
        for speed in (own, self._all.setdefault(call.pool, _Speed(ALL_TOKENS))):
            speed.add(output_tokens / call.samples, running_s)

    def output_tokens(self, call: Call, running_s: float) -> int:
        """Return the estimated output tokens, over all samples, of a call that has run this long."""
        most = call.samples * call.max_output_tokens
        own, every = self._own.get((call.pool, call.client)), self._all.get(call.pool)
        speed = own if own is not None and own.known else every
        if speed is None or not speed.known:
            return min(call.expected_output_tokens, most)
        output = round(call.samples * speed.tokens_per_s * max(0.0, running_s))
        return min(max(call.samples, output), most)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "all": {pool: list(_SPEED(speed)) for pool, speed in self._all.items()},
            "own": self._own.snapshot(lambda key, speed: [key[0], list(key[1]), *_SPEED(speed)]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._all = {pool: _Speed(*plain) for pool, plain in state["all"].items()}
        self._own.restore(
            state["own"], lambda plain: ((plain[0], tuple(plain[1])), _Speed(*plain[2:]))
        )
