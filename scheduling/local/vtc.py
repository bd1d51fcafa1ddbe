"""Virtual token counter (VTC paper, Algorithms 2-4): the least served client goes first.

Algorithm 2: the counters and their lift are :class:`VirtualCounters` (lines 6-15); the client with the
smallest counter and its earliest call (lines 21-22), stopping at the first that does not fit (23-24);
``wp`` per prompt token when the call is selected (25), cached or not; ``wq`` per decoded token (31).
Algorithm 3: with ``predict``, ``wq`` times the predicted output is charged at selection, too (26), then
only the tokens past the prediction (32-36); what was not generated is given back at the end (37-38).
Algorithm 4: ``cost`` may be any function, charged by its growth. A charge is divided by the call's
weight (weighted VTC, 4.3).

Departures: a newcomer is lifted to the level of the counters *without* outstanding predictions, since
it would otherwise wait for what is given back later. A preempted call is not charged again; its
outstanding prediction is given back and charged again, less what it has generated, when it is selected.

Bounds (``U = max(wp * longest prompt, wq * M)``, outputs reserved, ``wp <= wq``): counters of queued
clients differ by at most U (Lemma 4.3), service of backlogged ones by 2 U (Theorem 4.4). The paper
proves nothing for prediction and preemption; tested here: with prediction add twice the outstanding
predicted cost of a client to U; where outputs are not reserved and calls are preempted, ``wq`` times
the longest outputs of the calls that run at once takes the place of ``wq * M``.

Weakness: blind to the prefix cache, so it alternates between prompts that would be cheap together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from fairserve.interactions.call import ClientPath, TokenUsage
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.cost import Cost, Extend, Profiled
from fairserve.scheduling.counters import VirtualCounters
from fairserve.scheduling.local.by_client import ByClient
from fairserve.scheduling.local.client_queues import ClientQueue, Entry
from fairserve.scheduling.local.length_prediction import Prediction, make_predictor

CostName = Literal["linear", "extend", "profiled"]


@dataclass(frozen=True, slots=True)
class VtcOptions:
    """``wp`` and ``wq`` weigh prompt and output tokens (``profiled`` has constants of its own)."""

    wp: float = 1.0
    wq: float = 2.0
    cost: CostName = "linear"
    """``extend`` charges uncached prompt tokens only; ``profiled`` is B.2."""
    lift_when_idle: bool = True
    """Algorithm 2 lifts a client that finds nobody queued to the counter of who left the queue
    last; false: it keeps its own, as in the paper's code, from which the paper's tables come."""
    predict: Prediction | None = None
    noise: float = 0.5
    """Largest relative error of ``predict="noisy"``."""
    seed: int = 0
    """Of the errors of ``predict="noisy"``."""

    def __post_init__(self) -> None:
        check_token_weights(self.wp, self.wq)
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise is {self.noise}; allowed: 0 to 1")
        make_cost(self)
        make_predictor(self.predict, noise=self.noise, seed=self.seed)


def check_token_weights(wp: float, wq: float) -> None:
    """Raises ValueError unless both are finite, not negative, and one is over 0."""
    if not (0 <= wp < math.inf and 0 <= wq < math.inf and wp + wq > 0):
        raise ValueError(f"wp is {wp}, wq is {wq}; allowed: finite, not negative, not both 0")


def make_cost(options: VtcOptions) -> Cost | None:
    """The cost function of that name; None for the linear one, which needs no object."""
    if options.cost == "linear":
        return None
    if options.cost == "extend":
        return Extend(options.wp, options.wq)
    if options.cost == "profiled":
        return Profiled()
    raise ValueError(f"cost is {options.cost!r}; allowed: 'linear', 'extend', 'profiled'")


@dataclass(slots=True)
class _Account:
    """What a call that was selected once has been charged; kept while it is preempted."""

    charged: float
    """Its cost so far, before the division by its weight."""
    predicted: float
    """Its cost if the prediction comes true."""
    output_tokens: int = 0
    outstanding: float = 0.0
    """What of the prediction is reserved in the client's counter, after the division."""


class Vtc(ByClient):
    """O(log siblings) per level and admission, O(1) per level for what was decoded, both amortised.

    An admission moves one heap entry per level, and one more for every sibling that was charged since
    the last pass when it comes to the top. The next offer is found by ``accept``: ``peek`` only
    reads it.
    """

    def __init__(
        self, options: VtcOptions = VtcOptions(), *, counters: VirtualCounters | None = None
    ) -> None:
        super().__init__()
        self.options: Any = options
        self._wp, self._wq = options.wp, options.wq
        self._cost = make_cost(options)
        self._predictor = make_predictor(options.predict, noise=options.noise, seed=options.seed)
        self._counters = counters or VirtualCounters(lift_when_idle=options.lift_when_idle)
        self._by_token = self._cost is None and self._predictor is None
        """A token costs ``wq`` whatever came before: calls need no account."""

    def counter(self, path: ClientPath) -> float:
        """The virtual counter of a client or a level above, predictions included; 0 if unknown."""
        return self._counters.value(path)

    def add(self, call: LocalCall) -> None:
        """A call arrives. Raises ValueError as the base does, and if an oracle lacks its length."""
        if self._predictor is not None:
            self._predictor.check(call)
        super().add(call)

    def accept(self, cached_tokens: int) -> None:
        """Charge the selected call to its client's path, and see who is next."""
        entry = self._offered
        assert entry is not None, "accept follows a peek that offered a call"
        self._waiting -= 1
        cost, predicted = entry.cost, 0.0
        if cost < 0:
            cost, predicted = self._select(entry, cached_tokens)
        else:
            entry.cost = 0.0  # not again after a preemption
        client = entry.client
        queue = client.queue
        if queue.in_order:  # what ``remove`` does then, without the call
            fresh = queue.fresh
            fresh.popleft()
            entry.waiting = False
            following = queue.first = fresh[0] if fresh else None
        else:
            following = queue.remove(entry)
        earliest = None if following is None else following.arrival
        upcoming = self._counters.dispatch(client, earliest, cost, predicted)
        self._offered = None if upcoming is None else upcoming.queue.first

    def _select(self, entry: Entry, cached_tokens: int) -> tuple[float, float]:
        """What a selected call is charged, and what of its prediction it has yet to generate."""
        call = entry.call
        account: _Account | None = entry.account
        cost = 0.0
        if account is None:
            entry.cached_tokens = cached_tokens
            charged = predicted = self._cost_of(entry, 0)
            if self._predictor is not None:
                predicted = self._cost_of(entry, self._predictor.predict(call))
            account = entry.account = _Account(charged, predicted)
            cost = charged / call.weight
        if account.predicted > account.charged:
            account.outstanding = (account.predicted - account.charged) / call.weight
        return cost, account.outstanding

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge the growth of the cost, as far as it was not charged as a prediction."""
        entry = self._running(call_id)
        if self._by_token:
            self._counters.charge(entry.client, self._wq * tokens / entry.call.weight)
            return
        account: _Account = entry.account
        weight = entry.call.weight
        account.output_tokens += tokens
        charged = self._cost_of(entry, account.output_tokens)
        growth = max(0.0, charged - account.charged) / weight
        account.charged = charged
        if account.outstanding:
            left = max(0.0, account.predicted - charged) / weight
            come_true = account.outstanding - left
            account.outstanding = left
            self._counters.realise(entry.client, come_true)
            growth = max(0.0, growth - come_true)
        self._counters.charge(entry.client, growth)

    def _surplus(self, entry: Entry) -> tuple[float, ...]:
        return tuple(node.served + node.reserved for node in entry.client.line)

    def _choose(self) -> Entry:
        first: Entry = self._counters.least().queue.first
        return first

    def _enqueue(self, entry: Entry) -> None:
        call = entry.call
        client = entry.client = self._counters.arrive(call.path, call.arrival)
        if client.queue is None:
            client.queue = ClientQueue()
        client.queue.add(entry)
        if self._by_token and entry.cost < 0:
            entry.cost = self._wp * call.prompt_tokens / call.weight

    def _cancelled(self, entry: Entry) -> None:
        first = entry.client.queue.remove(entry)
        self._counters.leave(entry.client, None if first is None else first.call.arrival)

    def _preempted(self, entry: Entry) -> None:
        self._release_prediction(entry)
        self._counters.done(entry.client)
        self._enqueue(entry)

    def _ended(self, entry: Entry) -> None:
        self._release_prediction(entry)
        self._counters.done(entry.client)
        if self._predictor is not None:
            self._predictor.ended(entry.call.client_id, entry.account.output_tokens)

    def _release_prediction(self, entry: Entry) -> None:
        account: _Account | None = entry.account
        if account is not None and account.outstanding:
            self._counters.release(entry.client, account.outstanding)
            account.outstanding = 0.0

    def _cost_of(self, entry: Entry, output_tokens: int) -> float:
        prompt_tokens = entry.call.prompt_tokens
        if self._cost is None:
            return self._wp * prompt_tokens + self._wq * output_tokens
        return self._cost(TokenUsage(prompt_tokens, 0, entry.cached_tokens, output_tokens))
