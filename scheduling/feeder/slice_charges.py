"""What WSC charges a call between its dispatch and its end (FairServe 4.3, Algorithm 1 lines 39-48).

A call's slice is divided by the slice of its app's typical call and multiplied by its user's effort
``E_i = 1 / weight``, both fixed at dispatch. With ``reserves`` the expected slice is reserved then, and
real service replaces it as it is reported; without (the paper) only the final usage is charged.
Cost: O(levels of the client) per charge, and as much again per other model that shares the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fairserve.interactions.call import Call, ClientPath, TokenUsage
from fairserve.interactions.profile import DEFAULT_PROFILE, AppProfile
from fairserve.scheduling.cost import SliceWeights
from fairserve.scheduling.counter_node import Node
from fairserve.scheduling.counters import VirtualCounters


@dataclass(slots=True)
class _Dispatched:
    node: Node
    """Of its client; not forgotten while the call runs."""
    seq: int
    per_token: float
    """Counter units per weighted token: E_i / w_aj, fixed at dispatch."""
    per_output: float
    """Counter units per output token."""
    reserved: float = 0.0
    charged: float = 0.0
    prompt_cost: float = 0.0
    """The part of its cost that does not depend on the output."""


class SliceCharges:
    """The dispatched calls, and what each is charged to the counters."""

    def __init__(
        self,
        counters: VirtualCounters,
        weights: SliceWeights,
        *,
        reserves: bool,
        cached_weight: float,
        normalise: Literal["call", "interaction"],
    ) -> None:
        self._counters, self._weights = counters, weights
        self._reserves, self._cached_weight = reserves, cached_weight
        self._normalise = normalise
        self._reference = self._typical_of(DEFAULT_PROFILE, 1)
        self._dispatched: dict[str, _Dispatched] = {}
        self.listener: Callable[[ClientPath, float, float], None] | None = None
        """Called with a client and the changes of its received service and of its reservations."""

    def _publish(self, record: _Dispatched, served: float, reserved: float) -> None:
        if self.listener is not None:
            self.listener(record.node.path, served, reserved)

    def begin(
        self,
        call: Call,
        node: Node,
        seq: int,
        cached_tokens: int,
        *,
        profile: AppProfile,
        weight: float,
    ) -> float:
        """A call of this client is dispatched; returns its price (ALGORITHMS section 7)."""
        per_token = 1.0 / weight / self._typical_of(profile, call.stage)
        record = _Dispatched(node, seq, per_token, per_token * self._weights.gamma)
        if self._reserves:
            expected = TokenUsage(
                call.input_tokens, call.system_tokens, cached_tokens, call.expected_output_tokens
            )
            record.reserved = self._cost(record, expected)
            self._counters.reserve(node, record.reserved)
            self._publish(record, 0.0, record.reserved)
        self._dispatched[call.call_id] = record
        return per_token * self._reference

    def _typical_of(self, profile: AppProfile, stage: int) -> float:
        if self._normalise == "interaction":
            return self._weights.typical_interaction(profile, self._cached_weight)
        return self._weights.typical_call(profile, stage, self._cached_weight)

    def _cost(self, record: _Dispatched, usage: TokenUsage) -> float:
        tokens = self._weights.prompt_slice(usage, self._cached_weight)
        record.prompt_cost = record.per_token * tokens
        return record.prompt_cost + record.per_output * usage.output_tokens

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Used so much in all. Raises KeyError if the call is not dispatched."""
        if self._reserves:
            record = self._dispatched[call_id]
            self._charge_up_to(record, self._cost(record, usage))

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """``(call id, output tokens so far)`` of calls whose prompt was charged before."""
        if self._reserves:
            dispatched = self._dispatched
            for call_id, output_tokens in totals:
                record = dispatched[call_id]
                self._charge_up_to(record, record.prompt_cost + record.per_output * output_tokens)

    def _charge_up_to(self, record: _Dispatched, cost: float) -> None:
        more = cost - record.charged
        if more <= 0:
            return
        record.charged = cost
        reserved = record.reserved
        if reserved >= more:
            record.reserved = reserved - more
            self._counters.realise(record.node, more)
            if self.listener is not None:
                self.listener(record.node.path, more, -more)
            return
        if reserved:
            record.reserved = 0.0
            self._counters.realise(record.node, reserved)
        self._counters.charge(record.node, more - reserved)
        self._publish(record, more, -reserved)

    def finish(self, call_id: str, usage: TokenUsage) -> None:
        """The call ended: what was reserved and not used is given back."""
        record = self._dispatched.pop(call_id)
        self._charge_up_to(record, self._cost(record, usage))
        self._leave(record)

    def take_back(self, call_id: str) -> int:
        """The call was not served: every charge is taken back. Returns its sequence number."""
        record = self._dispatched.pop(call_id)
        if record.charged:
            self._counters.refund(record.node, record.charged)
            self._publish(record, -record.charged, 0.0)
        self._leave(record)
        return record.seq

    def _leave(self, record: _Dispatched) -> None:
        if record.reserved > 0:
            self._counters.release(record.node, record.reserved)
            self._publish(record, 0.0, -record.reserved)
        self._counters.done(record.node)

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values, by call id."""
        return {
            call_id: [
                list(record.node.path),
                record.seq,
                record.per_token,
                record.reserved,
                record.charged,
                record.prompt_cost,
            ]
            for call_id, record in self._dispatched.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot; the counters were restored before."""
        self._dispatched = {
            call_id: _Dispatched(
                self._counters.client(tuple(path)),
                seq,
                per_token,
                per_token * self._weights.gamma,
                reserved,
                charged,
                prompt_cost,
            )
            for call_id, (path, seq, per_token, reserved, charged, prompt_cost) in state.items()
        }
