"""Circuit breaker for one worker: a state machine without a clock.

*Closed*: calls are sent. Consecutive calls that did not begin, consecutive failed health checks, or
one call that found no listener *open* it: the worker gets nothing for a pause. Then it is *half
open*: one probe decides. If the probe passes, the circuit closes and a new generation of the worker
begins; otherwise the next pause is twice as long, up to a bound. A worker that passes its probes
and fails its calls is therefore probed less and less often: pauses restart from the first only
after a call has begun there, or after the circuit has been closed for a while.

A call of an earlier generation is no evidence about the current one: a report names the
``generation`` in which the call was sent. Failures of calls while the circuit is not closed do not
count twice.

A call may fail because of its content. So error answers open the circuit only if the calls belong
to at least two tenants, and those of one tenant count at most half of the required number: no
tenant can make a worker unavailable to others with calls that it answers with an error. A time-out
or a broken connection counts against the worker, whoever sent the call: each call is tried there at
most twice, and a pause after which the worker passes its health check lasts half a second.

Weakness: a worker that fails every second call never opens it, nor does one that answers all calls
with an error, passes its probes and has a single tenant; these calls are tried elsewhere.
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
    """Limits of a circuit: this many consecutive failed ``calls`` or ``probes`` open it."""

    calls: int = 5
    probes: int = 3
    first_pause_s: float = 0.5
    last_pause_s: float = 30.0
    calm_s: float = 60.0
    """Seconds after which a closed circuit restarts from the first pause."""

    def __post_init__(self) -> None:
        if self.calls < 1 or self.probes < 1:
            raise ValueError(f"calls is {self.calls}, probes is {self.probes}; allowed: 1 or more")
        if not 0 < self.first_pause_s <= self.last_pause_s < math.inf:
            raise ValueError(
                f"first_pause_s is {self.first_pause_s}, last_pause_s is {self.last_pause_s};"
                " allowed: over 0, the first not over the last"
            )


class Circuit:
    """Circuit of one worker. Times are those of the caller's monotonic clock."""

    def __init__(self, options: CircuitOptions = CircuitOptions()) -> None:
        self.options = options
        self.state: CircuitState = "closed"
        self.reason = ""
        """Latest cause of an open circuit."""
        self.opened = 0
        """Number of times that the circuit was opened."""
        self.generation = 0
        """Number of times that the circuit was closed again."""
        self.until_s = -math.inf
        """End of the pause while it is open, in seconds."""
        self._failed_calls: Counter[str] = Counter()
        """Consecutive failed calls by tenant; "" has those that no call can have caused."""
        self._failed_probes = 0
        self._backoff = Backoff(options.first_pause_s, options.last_pause_s)
        self._pauses = 0
        """Number of consecutive pauses, each longer than the previous one."""
        self._closed_s = -math.inf

    # --- calls ------------------------------------------------------------------------------------

    def call_began(self, generation: int) -> None:
        """Record that a call of this generation received its first chunk, or its whole answer."""
        if generation == self.generation and self.state == "closed":
            self._failed_calls.clear()
            self._pauses = 0

    def call_failed(
        self,
        generation: int,
        reason: str,
        now_s: float,
        *,
        tenant: str = "",
        unreachable: bool = False,
    ) -> bool:
        """Record that a call did not begin; return whether that opens the circuit.

        ``tenant`` is set if the tenant's call may be the cause. ``unreachable``: the address has no
        listener, for which one call is enough evidence.
        """
        if generation != self.generation or self.state != "closed":
            return False
        self._failed_calls[tenant] += 1
        if not unreachable and self._counted_failures() < self.options.calls:
            return False
        if not unreachable:
            reason = f"{self._failed_calls.total()} calls in a row did not begin: {reason}"
        self._open(reason, now_s)
        return True

    def _counted_failures(self) -> int:
        """Return the number of failures that count: of one tenant at most half of the required ones."""
        calls = self.options.calls
        most = min((calls + 1) // 2, calls - 1)
        return sum(
            min(failed, most) if tenant else failed for tenant, failed in self._failed_calls.items()
        )

    # --- probes -----------------------------------------------------------------------------------

    def should_probe(self, now_s: float) -> bool:
        """Return whether a probe is due; after a pause it is due once."""
        if self.state == "open" and now_s >= self.until_s:
            self.state = "half open"
            return True
        return self.state == "closed"

    def probe_passed(self, now_s: float) -> None:
        """Record a healthy worker. Closes the circuit if it is half open."""
        self._failed_probes = 0
        if self.state == "half open":
            self.state = "closed"
            self.generation += 1
            self._failed_calls.clear()
            self._closed_s = now_s

    def probe_failed(self, reason: str, now_s: float) -> bool:
        """Record an unhealthy worker; return whether that opens the circuit, now or again."""
        if self.state == "half open":
            self._open(reason, now_s)
            return True
        if self.state == "open":
            return False
        self._failed_probes += 1
        if self._failed_probes < self.options.probes:
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
        self._failed_probes = 0
