"""A circuit breaker for one worker: a state machine without a clock.

*Closed*: calls go there. Calls in a row that did not begin, looks at its health in a row that failed, or
one call that found nobody listening *open* it: the worker gets nothing for a pause. Then it is *half
open*: one look at it decides. If that passes, the circuit is closed and the worker begins anew; if not,
the next pause is twice as long, up to a bound. A worker that passes its looks and fails its calls
therefore comes back less and less often: pauses begin from the first again when a call has begun there,
or it has been closed for a while.

Calls of an earlier life of the worker say nothing of this one: who reports gives the ``life`` in which
the call was sent. Failures of calls while the circuit is not closed do not count twice.

A call may fail because of what it asks. So answers with an error open the circuit only if the calls are
those of two tenants or more, and those of one tenant count at most half of the number needed: no tenant
takes a worker away from the others by calls that it answers with an error. A time-out or a broken
connection counts as the worker's, whose calls it may be: each call ends after two, and a pause after
which the worker passes its health check lasts half a second.

Weakness: a worker that fails every second call never opens it, nor one that answers all calls with an
error, passes its looks and has a single tenant; the calls are tried elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from fairserve.engine.backoff import Backoff

CircuitState = Literal["closed", "open", "half open"]


@dataclass(frozen=True, slots=True)
class CircuitOptions:
    """``calls`` and ``looks`` in a row open it."""

    calls: int = 5
    looks: int = 3
    first_pause_s: float = 0.5
    last_pause_s: float = 30.0
    calm_s: float = 60.0
    """Closed for so long, it begins with the first pause again."""

    def __post_init__(self) -> None:
        if self.calls < 1 or self.looks < 1:
            raise ValueError(f"calls is {self.calls}, looks is {self.looks}; allowed: 1 or more")
        if not 0 < self.first_pause_s <= self.last_pause_s < math.inf:
            raise ValueError(
                f"first_pause_s is {self.first_pause_s}, last_pause_s is {self.last_pause_s};"
                " allowed: over 0, the first not over the last"
            )


class Circuit:
    """Of one worker. Times are those of the caller's clock and never go back."""

    def __init__(self, options: CircuitOptions = CircuitOptions()) -> None:
        self.options = options
        self.state: CircuitState = "closed"
        self.reason = ""
        """What opened it last."""
        self.opened = 0
        """How often it did."""
        self.life = 0
        """Grows whenever it is closed again."""
        self.until_s = -math.inf
        """The end of the pause, while it is open."""
        self._failed_calls: Counter[str] = Counter()
        """Calls in a row that failed, by tenant; under "" those that no call can have caused."""
        self._failed_looks = 0
        self._backoff = Backoff(options.first_pause_s, options.last_pause_s)
        self._pauses = 0
        """Pauses in a row, each longer than the one before."""
        self._closed_s = -math.inf

    # --- calls ------------------------------------------------------------------------------------

    def call_began(self, life: int) -> None:
        """A call that was sent in this life has begun to be answered."""
        if life == self.life and self.state == "closed":
            self._failed_calls.clear()
            self._pauses = 0

    def call_failed(
        self, life: int, reason: str, now_s: float, *, tenant: str = "", unreachable: bool = False
    ) -> bool:
        """A call did not begin; whether that opens the circuit.

        ``tenant`` is set where the tenant's call may be the cause. ``unreachable``: nobody listens
        there, which one call knows as well as many.
        """
        if life != self.life or self.state != "closed":
            return False
        self._failed_calls[tenant] += 1
        if not unreachable and self._counted_failures() < self.options.calls:
            return False
        if not unreachable:
            reason = f"{self._failed_calls.total()} calls in a row did not begin: {reason}"
        self._open(reason, now_s)
        return True

    def _counted_failures(self) -> int:
        """Return how many failed calls count: of one tenant at most half of those needed."""
        calls = self.options.calls
        most = min((calls + 1) // 2, calls - 1)
        return sum(
            min(failed, most) if tenant else failed for tenant, failed in self._failed_calls.items()
        )

    # --- looks ------------------------------------------------------------------------------------

    def may_look(self, now_s: float) -> bool:
        """Whether to look at the worker now; when the pause is over, this is the one look."""
        if self.state == "open" and now_s >= self.until_s:
            self.state = "half open"
            return True
        return self.state == "closed"

    def look_passed(self, now_s: float) -> None:
        """The worker is well: closes the circuit after the pause."""
        self._failed_looks = 0
        if self.state == "half open":
            self.state = "closed"
            self.life += 1
            self._failed_calls.clear()
            self._closed_s = now_s

    def look_failed(self, reason: str, now_s: float) -> bool:
        """It is not; whether that opens the circuit, for the first time or again."""
        if self.state == "half open":
            self._open(reason, now_s)
            return True
        if self.state == "open":
            return False
        self._failed_looks += 1
        if self._failed_looks < self.options.looks:
            return False
        self._open(f"it does not answer: {reason}", now_s)
        return True

    def _open(self, reason: str, now_s: float) -> None:
        if self.state == "closed" and now_s - self._closed_s >= self.options.calm_s:
            self._pauses = 0
        self._pauses += 1
        pause_s = self._backoff.pause_s(self._pauses)
        self.state, self.reason, self.until_s = "open", reason, now_s + pause_s
        self.opened += 1
        self._failed_calls.clear()
        self._failed_looks = 0
