"""The pace of a pool's calls: how long one takes at its worker.

By Little's law this is the time that calls were at workers, over the number of calls that have ended.
Both decay with a time constant of ``WINDOW_S``. O(1).
"""

from __future__ import annotations

import math
from typing import Any

from fairserve.interactions.ages import age_of, time_of

WINDOW_S = 60.0


class Pace:
    """Counts the calls at workers; ``running`` is their number."""

    def __init__(self) -> None:
        self.running = 0
        self._ended = self._prompts = self._outputs = self._call_s = 0.0
        self._passed_to_s: float | None = None

    @property
    def call_s(self) -> float:
        """Return how long a call takes in the mean; 0 if none has ended."""
        return self._call_s / self._ended if self._ended else 0.0

    @property
    def calls_per_token_s(self) -> float:
        """Return the calls of a busy run per second and token of a mean prompt; 0 if none has ended."""
        held = self._call_s * self._prompts
        return self._ended**2 / held if held > 0 else 0.0

    def seconds(self, output_tokens: float) -> float:
        """Return how long a call with this expected output takes; 0 if none has ended."""
        return output_tokens * self._call_s / self._outputs if self._outputs else 0.0

    def leave(self, prompt_tokens: int, output_tokens: int) -> None:
        """Note that a call with this prompt and expected output has left its worker."""
        self.running = max(0, self.running - 1)  # calls of before a change of the system left, too
        self._ended += 1.0
        self._prompts += prompt_tokens
        self._outputs += output_tokens

    def pass_to(self, now_s: float) -> float:
        """Let the time since the last call of this pass, and return it."""
        before, self._passed_to_s = self._passed_to_s, now_s
        passed_s = 0.0 if before is None else now_s - before
        kept = math.exp(-passed_s / WINDOW_S)
        self._ended *= kept
        self._prompts *= kept
        self._outputs *= kept
        self._call_s = kept * self._call_s + passed_s * self.running
        return passed_s

    def snapshot(self, now_s: float) -> list[Any]:
        """Return the state as plain JSON values; ages, not times."""
        passed = None if self._passed_to_s is None else age_of(self._passed_to_s, now_s)
        return [self.running, self._ended, self._prompts, self._outputs, self._call_s, passed]

    def restore(self, state: list[Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self.running, self._ended, self._prompts, self._outputs, self._call_s, passed = state
        self._passed_to_s = None if passed is None else time_of(passed, now_s)
