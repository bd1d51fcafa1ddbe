"""Virtual token counter (VTC paper, Algorithms 2-4): the least served client goes first.

``c_i`` is the counter of client i. The lines of Algorithm 2 and their methods:

    7-15   a call of client u arrives; if u has nothing queued, lift its          Vtc.add,
           counter to the smallest one queued, or to that of the client           VirtualCounters.arrive
           that left the queue last
    21-22  the client with the smallest counter, its earliest call                VirtualCounters.least
    23-24  if it does not fit, stop                                               ByClient.skip
    25-27  run it: c_k += wp * prompt tokens, cached or not                       Vtc.accept
    31     c_i += wq for each decoded token                                       Vtc.decoded

Algorithm 3: with ``predict``, ``wq`` times the predicted output is also charged at selection (26),
then only tokens past the prediction (32-36); tokens that were not generated are refunded at the end
(37-38). Algorithm 4: ``cost`` may be any function, charged by its increments. The call's weight
divides its charges (weighted VTC, 4.3).

Departures: a newcomer is lifted to the level of the counters *without* outstanding predictions,
since it would otherwise wait for service that is refunded later. A preempted call is not charged
again; its outstanding prediction is refunded, and charged again without the generated part at its
next selection.

Bounds (``U = max(wp * longest prompt, wq * M)``, outputs reserved, ``wp <= wq``): counters of
queued clients differ by at most U (Lemma 4.3), the service of backlogged ones by 2 U (Theorem 4.4).
The paper proves nothing for prediction and preemption; tested here: with prediction, twice the
outstanding predicted cost of a client is added to U; if outputs are not reserved and calls are
preempted, ``wq`` times the longest outputs of the concurrently running calls replaces ``wq * M``.

Weakness: it ignores the prefix cache, so it alternates between prompts that would be cheap
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import ClientPath, TokenUsage
from fairserve.scheduling.fairness.counters import VirtualCounters
from fairserve.scheduling.local.by_client import ByClient
from fairserve.scheduling.local.client_queues import ClientQueue, Entry
from fairserve.scheduling.local.length_prediction import Predictor, make_predictor
from fairserve.scheduling.local.vtc_options import VtcOptions, make_cost


@dataclass(slots=True)
class _Account:
    """Charges of a call since its first selection; kept while it is preempted."""

    charged: float
    """Cost so far, before the division by the weight."""
    predicted: float
    """Cost if the prediction comes true."""
    output_tokens: int = 0
    outstanding: float = 0.0
    """Part of the prediction reserved in the client's counter, after the division."""


class Vtc(ByClient):
    """The local scheduler of the VTC paper.

    Cost, amortised: O(log siblings) per level and admission, O(1) per level for decoded tokens. An
    admission moves one heap entry per level, and one more for every sibling charged since the last
    pass that reaches the top. ``accept`` determines the next offer; ``peek`` only reads it.
    """

    def __init__(
        self,
        options: VtcOptions = VtcOptions(),
        *,
        counters: VirtualCounters | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        """``predictor`` takes the place of the one that the options name."""
        super().__init__()
        self.options: Any = options
        self._wp, self._wq = options.wp, options.wq
        self._cost = make_cost(options)
        self._predictor = predictor or make_predictor(options.predict)
        self._counters = counters or VirtualCounters(lift_when_idle=options.lift_when_idle)
        self._by_token = self._cost is None and self._predictor is None
        """True if every token costs ``wq`` regardless of earlier ones, so calls need no account."""

    # --- Algorithms 2 to 4 ------------------------------------------------------------------------

    def _enqueue(self, entry: Entry) -> None:
        """Lift the client if it has nothing queued, then queue the call (lines 8-15)."""
        call = entry.call
        client = entry.client = self._counters.arrive(call.path, call.arrival)
        if client.queue is None:
            client.queue = ClientQueue()
        client.queue.add(entry)
        if self._by_token and entry.cost < 0:
            entry.cost = self._wp * call.prompt_tokens / call.weight

    def _choose(self) -> Entry:
        """Return the earliest call of the client with the smallest counter (lines 21-22)."""
        first: Entry = self._counters.least().queue.first
        return first

    def accept(self, cached_tokens: int) -> None:
        """Charge the selected call to its client's path, and find the next offer (lines 25-27)."""
        entry = self._offered
        assert entry is not None, "accept follows a peek that offered a call"
        self._waiting -= 1
        cost, predicted = entry.cost, 0.0
        if cost < 0:
            cost, predicted = self._select(entry, cached_tokens)
        else:
            entry.cost = 0.0  # not charged again after a preemption
        client = entry.client
        queue = client.queue
        if queue.in_order:  # ``remove``, inlined for this case
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
        """Return the charge at selection (line 25), and the predicted part (Algorithm 3 line 26)."""
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
        """Charge the cost increment beyond any prediction (line 31, Algorithm 3 lines 32-36)."""
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

    def _cost_of(self, entry: Entry, output_tokens: int) -> float:
        """Return the cost of a call with this output: ``wp``, ``wq``, or Algorithm 4's function."""
        prompt_tokens = entry.call.prompt_tokens
        if self._cost is None:
            return self._wp * prompt_tokens + self._wq * output_tokens
        return self._cost(TokenUsage(prompt_tokens, 0, entry.cached_tokens, output_tokens))

    # --- ends and preemptions ---------------------------------------------------------------------

    def _ended(self, entry: Entry) -> None:
        self._release_prediction(entry)
        self._counters.done(entry.client)
        if self._predictor is not None:
            self._predictor.ended(entry.call.client_id, entry.account.output_tokens)

    def _cancelled(self, entry: Entry) -> None:
        first = entry.client.queue.remove(entry)
        self._counters.leave(entry.client, None if first is None else first.call.arrival)

    def _preempted(self, entry: Entry) -> None:
        self._release_prediction(entry)
        self._counters.done(entry.client)
        self._enqueue(entry)

    def _release_prediction(self, entry: Entry) -> None:
        """Refund the predicted tokens that were not generated (Algorithm 3 lines 37-38)."""
        account: _Account | None = entry.account
        if account is not None and account.outstanding:
            self._counters.release(entry.client, account.outstanding)
            account.outstanding = 0.0

    # --- state ------------------------------------------------------------------------------------

    def counter(self, path: ClientPath) -> float:
        """Return the counter of a client or an outer level, predictions included; 0 if unknown."""
        return self._counters.value(path)

    def _surplus(self, entry: Entry) -> tuple[float, ...]:
        return tuple(node.served + node.reserved for node in entry.client.line)
