"""Forecast of the output of calls whose workers report no progress.

A call that is not streamed reports its output at its end. If it is cancelled or fails after its start,
its output so far is estimated from the speed of its model: output tokens of a sequence a second, from
start to end, as a moving average over completed calls, at least one token a sample. Before the first of
them, the call's expected output counts.
"""

from __future__ import annotations

from fairserve.interactions.call import Call

SMOOTHING = 0.1
"""Weight of the latest call in the average."""
MIN_S = 0.001
"""Shortest time in seconds from which a speed is computed."""


class OutputForecast:
    """Speeds by model pool. O(1) a call; one number for each pool."""

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}

    def completed(self, call: Call, output_tokens: int, running_s: float) -> None:
        """Add a completed call, which ran this many seconds."""
        if output_tokens <= 0 or running_s < MIN_S:
            return
        speed = output_tokens / call.samples / running_s
        before = self._speeds.get(call.pool, speed)
        self._speeds[call.pool] = before + SMOOTHING * (speed - before)

    def output_tokens(self, call: Call, running_s: float) -> int:
        """Return the estimated output tokens, over all samples, of a call that has run this long."""
        most = call.samples * call.max_output_tokens
        speed = self._speeds.get(call.pool)
        if speed is None:
            return min(call.expected_output_tokens, most)
        output = round(call.samples * speed * max(0.0, running_s))
        return min(max(call.samples, output), most)
