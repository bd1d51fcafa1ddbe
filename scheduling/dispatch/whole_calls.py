"""Calls that report nothing before their end: their output so far, by the speed of their model.

A call that is not streamed is charged its expected output while it runs. If a client's calls are
expected to be short and are long, it would get more of them, without a bound, until the first ends. So
the expectation grows with the time: once a call has run as long as the model needs for it, its expected
output is twice what the model generates in that time, at most the call's limit. Feeders that reserve
the expected output reserve the new one.

The speed is a mean over completed calls, in output tokens of a sequence a second from start to end. A
call has the weight of its output, so calls with little output do not move it. Until ``LEARNED_TOKENS``
are known, ``FIRST_TOKENS_PER_S`` counts.

Bound (decision 32). At a tick a running call is charged at least what the model generates at its speed
in the time that the call has run. A call of a model with speed v that is taken for u is charged at
least the share ``min(1, u / v)`` of its output, less that of a tick.

Cost: O(log running calls) at the start of a call, and each time that its expectation doubles. Weakness:
long prompts count in the time, so a model of long prompts with short answers is taken for slower than it
is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call
from fairserve.interactions.lazy_heap import LazyHeap

FIRST_TOKENS_PER_S = 100.0
"""Speed of a sequence before any is known."""
LEARNED_TOKENS = 512.0
"""Output of a sequence, over all completed calls, from which their speed counts."""
_REMEMBERED_TOKENS = 4096.0
"""Output that the mean remembers: later calls replace the share of earlier ones."""
_MIN_S = 0.001
"""Shortest time in seconds from which a speed is computed."""


@dataclass(slots=True)
class _Running:
    started_s: float
    samples: int
    most_tokens: int
    expected_tokens: int
    due_s: float = 0.0
    """Time at which the call has generated what is expected."""


class WholeCalls:
    """Running calls of one model that report nothing before their end."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._due: LazyHeap[str] = LazyHeap()
        """Calls by their due times, then by id."""
        self._learned_tokens = 0.0
        self._mean = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Return the speed of a sequence."""
        return self._mean if self._learned_tokens >= LEARNED_TOKENS else FIRST_TOKENS_PER_S

    def start(self, call: Call, now_s: float) -> None:
        """Add a call that starts, unless it reports its progress or generates nothing."""
        most = call.samples * call.max_output_tokens
        if call.streamed or most < 1 or call.call_id in self._running:
            return
        running = _Running(now_s, call.samples, most, max(1, call.expected_output_tokens))
        self._running[call.call_id] = running
        self._await(call.call_id, running)

    def _await(self, call_id: str, running: _Running) -> None:
        """List a call by the time at which it has generated what is expected."""
        if running.expected_tokens < running.most_tokens:
            speed = running.samples * self.tokens_per_s
            running.due_s = running.started_s + running.expected_tokens / speed
            self._due.set(call_id, (running.due_s, call_id))

    def completed(self, call_id: str, output_tokens: int, now_s: float) -> None:
        """Learn from a call that completed with this output, over all samples."""
        running = self._running.get(call_id)
        if running is None or output_tokens <= 0:
            return
        tokens = output_tokens / running.samples
        weight = min(tokens, _REMEMBERED_TOKENS)
        self._learned_tokens = min(self._learned_tokens + weight, _REMEMBERED_TOKENS)
        speed = tokens / max(_MIN_S, now_s - running.started_s)
        self._mean += (speed - self._mean) * weight / self._learned_tokens

    def remove(self, call_id: str) -> None:
        """Forget a call that has left its worker; unknown ones are ignored."""
        self._running.pop(call_id, None)
        self._due.discard(call_id)

    def overdue(self, now_s: float) -> list[tuple[str, int]]:
        """Return each call that has run longer than expected, with its new expected output."""
        found: list[tuple[str, int]] = []
        awaited: list[tuple[str, _Running]] = []
        while self._due and self._due.first()[0][0] <= now_s:
            _, call_id = self._due.first()
            self._due.discard(call_id)
            running = self._running[call_id]
            awaited.append((call_id, running))
            generated = running.samples * self.tokens_per_s * (now_s - running.started_s)
            if generated >= running.expected_tokens:  # unless the speed has fallen
                running.expected_tokens = min(running.most_tokens, max(1, round(2 * generated)))
                found.append((call_id, running.expected_tokens))
        for call_id, running in awaited:
            self._await(call_id, running)
        return found

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "running": [
                [
                    call_id,
                    age_of(each.started_s, now_s),
                    each.samples,
                    each.most_tokens,
                    each.expected_tokens,
                    age_of(each.due_s, now_s),
                ]
                for call_id, each in self._running.items()
            ],
            "learned_tokens": self._learned_tokens,
            "mean": self._mean,
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._running, self._due = {}, LazyHeap()
        for call_id, age, samples, most, expected, due in state["running"]:
            each = _Running(time_of(age, now_s), samples, most, expected, time_of(due, now_s))
            self._running[call_id] = each
            if expected < most:
                self._due.set(call_id, (each.due_s, call_id))
        self._learned_tokens, self._mean = state["learned_tokens"], state["mean"]
