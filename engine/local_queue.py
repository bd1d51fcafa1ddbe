"""The fair queue that stands before a worker that has none: a server of any other kind.

Such a server gets a bounded number of calls at a time; the others wait here, in the order of a local
scheduler (:class:`~fairserve.scheduling.base.LocalScheduler`, DLPM as a rule), which is charged as it
would be inside an engine: the extend tokens when a call is sent, tokens as they are decoded. A state
machine without a clock or a socket.

What the server has cached nobody tells. The queue believes that it has what it was sent lately, without
regard to salts, since such a server has none; the least recently used goes first.

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

    def add(self, call: LocalCall) -> None:
        """A call arrives. Raises ValueError for an id that is here."""
        self._cache.register(call.call_id, self._hasher.keys(call.token_ids))
        try:
            self._scheduler.add(call)
        except ValueError:
            if call.call_id not in self._waiting | self._sent:
                self._cache.forget(call.call_id)
            raise
        self._waiting.add(call.call_id)

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
            cached_tokens = self._cache.match(call)[0]
            self._scheduler.accept(cached_tokens)
            self._cache.store(call.call_id)
            self._waiting.remove(call.call_id)
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
        self._sent.discard(call_id)

    def pause(self, until_s: float) -> None:
        """Send nothing before then; a pause never shortens another one."""
        self.resume_s = max(self.resume_s, until_s)
