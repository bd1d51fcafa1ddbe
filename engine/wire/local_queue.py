"""Fair queue in front of a worker that has none: a server of any other kind.

Such a server gets a bounded number of calls at a time; the others wait here, in the order of a
local scheduler (:class:`~fairserve.scheduling.base.LocalScheduler`, DLPM by default), which is
charged as inside an engine: the extend tokens when a call is sent, output tokens as they are
decoded. It is a state machine without a clock or a socket.

The server does not report its cache. The queue assumes that it holds the latest prompts that each of
its models (LoRA adapters) was sent, regardless of salts, since such a server has none; the least
recently used is evicted first.

A server may request a pause because of one call, such as one that is too large for the account
there. So a pause applies to the calls of that call's tenant, and to all calls once two tenants got
one. The scheduler does not know the calls of a paused tenant: else they would keep their turn and
their credit, for which the others wait.

Weakness: the order among the server's calls, and its evictions, are unknown. A call that fails
after it was sent has been charged for its prompt.
"""

from __future__ import annotations

import math

from fairserve.engine.block_prefix_cache import BlockPrefixCache
from fairserve.scheduling.base import LocalCall, LocalScheduler
from fairserve.scheduling.locality.block_keys import BlockHasher

BLOCK_TOKENS = 16


class LocalQueue:
    """Calls of one server by id: waiting, then sent, then removed."""

    def __init__(
        self, scheduler: LocalScheduler, concurrency: int, cache_tokens: int, seed: int = 0
    ) -> None:
        """Create an empty queue; ``cache_tokens`` bounds the assumed cache of the server."""
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; allowed: 1 or more")
        self.concurrency = concurrency
        self.resume_s = -math.inf
        """Time before which no call is sent."""
        self._tenant_pauses: dict[str, float] = {}
        """End of each tenant's pause."""
        self._tenants: dict[str, str] = {}
        """Tenant of each waiting call, in the order of their arrival."""
        self._apart: set[str] = set()
        """Waiting calls that the scheduler does not know, because their tenant is paused."""
        self._scheduler = scheduler
        self._cache = BlockPrefixCache(cache_tokens, BLOCK_TOKENS)
        self._hasher = BlockHasher(seed, BLOCK_TOKENS)
        self._waiting: dict[str, LocalCall] = {}
        self._sent: set[str] = set()

    @property
    def waiting(self) -> int:
        """Return the number of waiting calls."""
        return len(self._waiting)

    @property
    def sent(self) -> int:
        """Return the number of calls at the server."""
        return len(self._sent)

    def add(self, call: LocalCall, tenant: str = "", model: str = "") -> None:
        """Add a call of one of the server's models. Raises ValueError for an id that is in use."""
        if call.call_id in self._apart:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        self._scheduler.add(call)
        self._cache.register(call.call_id, self._hasher.keys(call.token_ids, adapter=model))
        self._waiting[call.call_id] = call
        self._tenants[call.call_id] = tenant

    def send(self, now_s: float) -> list[str]:
        """Return the calls to send now; they count as sent from now on."""
        turns: list[str] = []
        if now_s < self.resume_s or not self._waiting or len(self._sent) >= self.concurrency:
            return turns
        if self._tenant_pauses or self._apart:
            self._set_apart(now_s)
        self._scheduler.start_pass(self._cache)
        while len(self._sent) < self.concurrency:
            call = self._scheduler.peek()
            if call is None:
                break
            cached_tokens = self._cache.match(call)[0]
            self._scheduler.accept(cached_tokens)
            self._cache.store(call.call_id)
            del self._waiting[call.call_id]
            del self._tenants[call.call_id]
            self._sent.add(call.call_id)
            turns.append(call.call_id)
        return turns

    def _set_apart(self, now_s: float) -> None:
        """Take the calls of paused tenants from the scheduler, and give it those of others again."""
        for call_id, tenant in self._tenants.items():
            paused = self._tenant_pauses.get(tenant, -math.inf) > now_s
            if paused and call_id not in self._apart:
                self._apart.add(call_id)
                self._scheduler.finish(call_id)
            elif not paused and call_id in self._apart:
                self._apart.remove(call_id)
                self._scheduler.add(self._waiting[call_id])

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge a sent call for this many more tokens."""
        if tokens > 0:
            self._scheduler.decoded(call_id, tokens)

    def end(self, call_id: str) -> None:
        """Remove a call, waiting or sent. Raises KeyError for an unknown one."""
        if call_id in self._apart:
            self._apart.remove(call_id)
        else:
            self._scheduler.finish(call_id)
        self._cache.forget(call_id)
        self._waiting.pop(call_id, None)
        self._tenants.pop(call_id, None)
        self._sent.discard(call_id)

    def pause(self, now_s: float, until_s: float, tenant: str = "") -> None:
        """Pause until ``until_s`` because of a call of this tenant; a pause never shortens another.

        Only the tenant's calls wait, unless a second tenant is paused, or ``tenant`` is empty.
        """
        pauses = {name: end_s for name, end_s in self._tenant_pauses.items() if end_s > now_s}
        if tenant:
            pauses[tenant] = max(until_s, pauses.get(tenant, -math.inf))
        self._tenant_pauses = pauses
        if len(pauses) > 1 or not tenant:
            self.resume_s = max(self.resume_s, until_s)

    def next_resume_s(self, now_s: float) -> float:
        """Return the end of the next pause to end; infinite if there is none."""
        if now_s < self.resume_s:
            return self.resume_s
        ends_s = (end_s for end_s in self._tenant_pauses.values() if end_s > now_s)
        return min(ends_s, default=math.inf)

    def paused_s(self, now_s: float) -> float:
        """Return the remaining seconds of the longest pause, of all calls or of one tenant's."""
        return max(0.0, max(self.resume_s, *self._tenant_pauses.values(), -math.inf) - now_s)
