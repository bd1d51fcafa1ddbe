"""Cache-aware routing of SGLang's gateway: locality while the load is balanced, balance otherwise.

There are three rules, in this order. If both ``max - min > balance_abs`` and
``max > balance_rel * min`` outstanding calls, the load is unbalanced and the least loaded worker is
chosen. Otherwise, if the longest match exceeds ``match_threshold`` of the prompt, the least loaded
worker with that match is chosen. Otherwise the least loaded worker is. (Earlier versions of the
gateway chose the smallest tree in the last case.)

The load counts all workers, open or not; only open ones are chosen. The gateway keeps a tree over
the text that it has sent; here the cluster's :class:`Locality` is used. Weakness: no client is
protected from another, and with ``balance_abs`` 64 one worker may run that far ahead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fairserve.interactions.call import Call
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.least_loaded import LeastLoaded
from fairserve.scheduling.routers.loads import check_balance


@dataclass(frozen=True, slots=True)
class CacheAwareOptions:
    """Options: ``balance_abs`` None ignores loads; with ``match_threshold`` 0 any match counts."""

    match_threshold: float = 0.3
    balance_abs: int | None = 64
    balance_rel: float = 1.5

    def __post_init__(self) -> None:
        if not 0 <= self.match_threshold <= 1:
            raise ValueError(f"match_threshold is {self.match_threshold}; allowed: 0 to 1")
        check_balance(self.balance_abs, self.balance_rel)


class CacheAware(LeastLoaded):
    """Cache-aware router; loads are counted as in its parent. O(log blocks) per call."""

    def __init__(
        self, locality: Locality, options: CacheAwareOptions = CacheAwareOptions()
    ) -> None:
        super().__init__(locality)
        self.options = options
        self._locality = locality

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return a worker by the three rules. Changes nothing."""
        usable = self._workers.mask(open_workers) & self._loads.all
        if not usable:
            return None
        if self._loads.unbalanced(self.options.balance_abs, self.options.balance_rel):
            return self._loads.least(usable)
        matched, having = self._locality.match(call, usable)
        if matched > self.options.match_threshold * call.prompt_tokens:
            return self._loads.least(having)
        return self._loads.least(usable)
