"""Least counter first: VTC without the lift, the baseline of VTC section 5.1.

The client with the least service since the start goes first. A client that was idle keeps the
credit of its absence, so it displaces all others until it has caught up: fair over the whole time,
unfair over every interval. The lift removes this weakness.

Departure: without the lift, forgetting a counter is never harmless, and the paper keeps all of
them. Here about ``remembered_clients`` idle clients are kept, idle outer levels included; beyond
that, those with the smallest counters are forgotten, which gain the least from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.scheduling.fairness.counter_node import CounterNode
from fairserve.scheduling.fairness.counters import VirtualCounters
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions, check_token_weights


@dataclass(frozen=True, slots=True)
class LcfOptions:
    """Options: ``wp`` and ``wq`` weigh prompt and output tokens."""

    wp: float = 1.0
    wq: float = 2.0
    remembered_clients: int = 100_000

    def __post_init__(self) -> None:
        check_token_weights(self.wp, self.wq)
        if self.remembered_clients < 1:
            raise ValueError(f"remembered_clients is {self.remembered_clients}; allowed: 1 or more")


class UnliftedCounters(VirtualCounters):
    """Counters that keep the credit of an absence."""

    def __init__(self, remembered_clients: int) -> None:
        super().__init__()
        self._remembered_clients = remembered_clients
        self._sweep_at = 2 * remembered_clients

    def _lift_level(self, parent: CounterNode) -> float:
        return 0.0

    def _sweep(self) -> None:
        """Forget idle nodes; a parent goes after its children, whose counters it includes."""
        nodes = list(self._root.below())
        idle = [node for node in reversed(nodes) if not node.calls]
        idle.sort(key=lambda node: node.served)
        forgotten = idle[: max(0, len(idle) - self._remembered_clients)]
        for node in forgotten:
            node.parent.forget(node)
        self._nodes = len(nodes) - len(forgotten)
        self._sweep_at = self._nodes + self._remembered_clients


class Lcf(Vtc):
    """The local scheduler LCF of the VTC paper."""

    def __init__(self, options: LcfOptions = LcfOptions()) -> None:
        super().__init__(
            VtcOptions(options.wp, options.wq),
            counters=UnliftedCounters(options.remembered_clients),
        )
        self.options = options
