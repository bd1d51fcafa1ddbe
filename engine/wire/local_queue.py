"""The fair queue that stands before a worker that has none: a server of any other kind.

Such a server gets a bounded number of calls at a time; the others wait here, in the order of a local
scheduler (:class:`~fairserve.scheduling.base.LocalScheduler`, DLPM as a rule), which is charged as it
would be inside an engine: the extend tokens when a call is sent, tokens as they are decoded. A state
machine without a clock or a socket.

What the server has cached nobody tells. The queue believes that it has what it was sent lately, without
regard to salts, since such a server has none; the least recently used goes first.

A server may ask for a pause because of one call, such as one that is too large for the account there.
So a pause is for the calls of that call's tenant; once calls of two tenants were answered so, for all.

Weakness: the server's own order among the calls that it has is its own, and so is what it evicts. A call
that fails after it was sent has paid for its prompt.
"""

from __future__ import annotations

import math

from fairserve.engine.block_prefix_cache import BlockPrefixCache
from fairserve.scheduling.base import LocalCall, LocalScheduler
from fairserve.scheduling.block_keys import BlockHasher

BLOCK_TOKENS = 16


class LocalQueue:
    """Calls by id: waiting, then sent, then gone."""

    def __init__(
        self, scheduler: LocalScheduler, concurrency: int, cache_tokens: int, seed: int = 0
    ) -> None:
        """``cache_tokens`` bounds what the server is believed to have cached."""
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; allowed: 1 or more")
        self.concurrency = concurrency
        self.resume_s = -math.inf
        """Nothing is sent before."""
        self._tenant_pauses: dict[str, float] = {}
        """When the calls of a tenant are sent again."""
        self._tenants: dict[str, str] = {}
        """Values of the waiting calls."""
        self._scheduler = scheduler
        self._cache = BlockPrefixCache(cache_tokens, BLOCK_TOKENS)
        self._hasher = BlockHasher(seed, BLOCK_TOKENS)
        self._waiting: set[str] = set()
        self._sent: set[str] = set()

    @property
    def waiting(self) -> int:
        """Calls that wait here."""
        return len(self._waiting)

    @property
    def sent(self) -> int:
        """Calls that the server has."""
        return len(self._sent)

    def add(self, call: LocalCall, tenant: str = "") -> None:
        """A call arrives. Raises ValueError for an id that is here."""
        self._cache.register(call.call_id, self._hasher.keys(call.token_ids))
        try:
            self._scheduler.add(call)
        except ValueError:
            if call.call_id not in self._waiting | self._sent:
                self._cache.forget(call.call_id)
            raise
        self._waiting.add(call.call_id)
        self._tenants[call.call_id] = tenant

    def send(self, now_s: float) -> list[str]:
        """The calls whose turn it is: they count as sent from now on."""
        turns: list[str] = []
        if now_s < self.resume_s or not self._waiting or len(self._sent) >= self.concurrency:
            return turns
        self._scheduler.start_pass(self._cache)
        while len(self._sent) < self.concurrency:
            call = self._scheduler.peek()
            if call is None:
                break
            if self._tenant_pauses.get(self._tenants[call.call_id], -math.inf) > now_s:
                self._scheduler.skip()
                continue
            cached_tokens = self._cache.match(call)[0]
            self._scheduler.accept(cached_tokens)
            self._cache.store(call.call_id)
            self._waiting.remove(call.call_id)
            del self._tenants[call.call_id]
            self._sent.add(call.call_id)
            turns.append(call.call_id)
        return turns

    def decoded(self, call_id: str, tokens: int) -> None:
        """A call that was sent has generated so many more tokens."""
        if tokens > 0:
            self._scheduler.decoded(call_id, tokens)

    def end(self, call_id: str) -> None:
        """A call leaves, wherever it is. Raises KeyError if it is not here."""
        self._scheduler.finish(call_id)
        self._cache.forget(call_id)
        self._waiting.discard(call_id)
        self._tenants.pop(call_id, None)
        self._sent.discard(call_id)

    def pause(self, now_s: float, until_s: float, tenant: str = "") -> None:
        """Send nothing before then, because of a call of this tenant; a pause never shortens another.

        Only the calls of the tenant wait, unless a second one was asked to, or ``tenant`` is empty.
        """
        pauses = {name: end_s for name, end_s in self._tenant_pauses.items() if end_s > now_s}
        if tenant:
            pauses[tenant] = max(until_s, pauses.get(tenant, -math.inf))
        self._tenant_pauses = pauses
        if len(pauses) > 1 or not tenant:
            self.resume_s = max(self.resume_s, until_s)

    def next_resume_s(self, now_s: float) -> float:
        """Return when a pause ends next; infinite if there is none."""
        if now_s < self.resume_s:
            return self.resume_s
        ends_s = (end_s for end_s in self._tenant_pauses.values() if end_s > now_s)
        return min(ends_s, default=math.inf)

    def paused_s(self, now_s: float) -> float:
        """Return the rest of the longest pause, of all calls or of one tenant's."""
        return max(0.0, max(self.resume_s, *self._tenant_pauses.values(), -math.inf) - now_s)
