"""The pace of a pool's calls: how long one is at its worker, per call and per output token.

Means over the calls that have ended, with a time constant of ``WINDOW_S``. O(1).
"""

from __future__ import annotations

import math
from typing import Any

from fairserve.interactions.ages import age_of, time_of

WINDOW_S = 60.0


class Pace:
    """Measures the calls at workers."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        """Time at which each running call was sent to its worker."""
        self._ended = self._prompts = self._outputs = self._passed_s = 0.0
        self._passed_to_s: float | None = None

    @property
    def call_s(self) -> float:
        """Return how long a call is at its worker in the mean; 0 if none has ended."""
        return self._passed_s / self._ended if self._ended else 0.0

    @property
    def calls_per_token_s(self) -> float:
        """Return the calls of a busy run per second and token of a mean prompt; 0 if none has ended."""
        held = self._passed_s * self._prompts
        return self._ended**2 / held if held > 0 else 0.0

    def seconds(self, output_tokens: float) -> float:
        """Return how long a call with this expected output takes; 0 if none has ended."""
        return output_tokens * self._passed_s / self._outputs if self._outputs else 0.0

    def enter(self, call_id: str, now_s: float) -> None:
        """Note that a call was sent to a worker."""
        self._since_s[call_id] = now_s

    def leave(self, call_id: str, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        """Note that a call with this prompt and expected output has left its worker.

        One that was sent before a change of the system is not known, and not counted.
        """
        since_s = self._since_s.pop(call_id, None)
        if since_s is None:
            return
        self._ended += 1.0
        self._prompts += prompt_tokens
        self._outputs += output_tokens
        self._passed_s += now_s - since_s

    def pass_to(self, now_s: float) -> float:
        """Let the time since the last call of this pass, and return it."""
        before, self._passed_to_s = self._passed_to_s, now_s
        passed_s = 0.0 if before is None else now_s - before
        kept = math.exp(-passed_s / WINDOW_S)
        self._ended *= kept
        self._prompts *= kept
        self._outputs *= kept
        self._passed_s *= kept
        return passed_s

    def snapshot(self, now_s: float) -> list[Any]:
        """Return the state as plain JSON values; ages, not times."""
        running = [[call_id, age_of(since_s, now_s)] for call_id, since_s in self._since_s.items()]
        passed = None if self._passed_to_s is None else age_of(self._passed_to_s, now_s)
        return [running, self._ended, self._prompts, self._outputs, self._passed_s, passed]

    def restore(self, state: list[Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        running, self._ended, self._prompts, self._outputs, self._passed_s, passed = state
        self._since_s = {call_id: time_of(age, now_s) for call_id, age in running}
        self._passed_to_s = None if passed is None else time_of(passed, now_s)
