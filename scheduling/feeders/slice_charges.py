"""Charges of WSC for a call between its dispatch and its end (FairServe 4.3, Algorithm 1 lines 39-48).

Line 47: ``w_aj`` is the slice of the app's typical call at the call's stage. Line 48: a call costs
``E_i (alpha L_I + beta L_S + gamma L_O) / w_aj``; the effort ``E_i = 1 / weight`` and ``w_aj`` are
fixed at dispatch. With levels a weight counts at its own level only: it divides the share among
siblings, and a user of weight 9 does not change its tenant's share. With ``reserves`` the expected
slice is reserved at dispatch and replaced by real service as it is reported; without (the paper)
only the final usage is charged.

The charges of a call count in the other models' counters at the levels where a sibling waited at
its dispatch. Capacity that nobody else wanted is no debt anywhere else. Cost: O(levels of the
client) per charge, and the same again for each other model if the call was contended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from operator import mul
from typing import Any, Literal

from fairserve.interactions.call import Call, ClientPath, TokenUsage
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE, AppProfile
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.fairness.counter_node import CounterNode
from fairserve.scheduling.fairness.counters import Factors, VirtualCounters
from fairserve.scheduling.fairness.level_weights import Weights, efforts_by_level

_ROUNDING = 1e-9
"""Largest rest of expected charges that counts as zero, to allow for rounding errors."""


@dataclass(slots=True)
class _Dispatched:
    node: CounterNode
    """Counter node of the client, which is kept while the call runs."""
    seq: int
    per_token: float
    """Counter units per weighted token: E_i / w_aj, or 1 / w_aj with ``factors``; fixed at dispatch."""
    per_output: float
    """Counter units per output token."""
    reserved: float = 0.0
    charged: float = 0.0
    prompt_cost: float = 0.0
    """Part of the cost that does not depend on the output."""
    factors: Factors | None = None
    """E_i by level, if the levels differ."""
    elsewhere: Factors | None = None
    """Factors of the charges in the other models; None if nobody else wanted the capacity."""
    wanted: tuple[bool, ...] | None = None
    """Levels at which a waiting sibling could use its worker, if the end of the call has to limit its
    charge where none could."""
    due: float = 0.0
    """Expected cost that only the end will charge."""


class SliceCharges:
    """The dispatched calls and their charges to the counters."""

    def __init__(
        self,
        counters: VirtualCounters,
        weights: SliceWeights,
        *,
        reserves: bool,
        cached_weight: float,
        normalise: Literal["call", "interaction"],
        currency: Literal["slices", "tokens"] = "slices",
        margin: float = 0.0,
    ) -> None:
        """``margin``: see :meth:`_limit`."""
        self._counters, self._weights = counters, weights
        self._margin = margin
        self._reserves, self._cached_weight = reserves, cached_weight
        self._normalise = normalise
        self._profiles = currency == "slices"
        self._reference = self.typical_of(DEFAULT_PROFILE, 1)
        self._dispatched: dict[str, _Dispatched] = {}
        self._due: dict[CounterNode, float] = {}
        """Expected charges of the dispatched calls at the levels where siblings wanted their workers, if
        only their ends are charged."""
        self.listener: Callable[[ClientPath, float, float, Factors], None] | None = None
        """Called with a client, the changes of its received service and of its reservations, and
        the factors on both at each level."""

    def typical_of(self, profile: AppProfile, stage: int) -> float:
        """Return w_aj in weighted tokens (line 47); equal for all apps if tokens are the currency."""
        if not self._profiles:
            profile = DEFAULT_PROFILE
        if self._normalise == "interaction":
            return self._weights.typical_interaction(profile, self._cached_weight)
        return self._weights.typical_call(profile, stage, self._cached_weight)

    def _cost(self, record: _Dispatched, usage: TokenUsage) -> float:
        """Return the cost of a usage in counter units (line 48)."""
        text, system, cached, *_ = usage
        tokens = self._weights.prompt_slice(text, system, cached, self._cached_weight)
        record.prompt_cost = record.per_token * tokens
        return record.prompt_cost + record.per_output * usage.output_tokens

    def begin(
        self,
        call: Call,
        node: CounterNode,
        seq: int,
        cached_tokens: int,
        *,
        typical: float,
        weights: Weights,
        tier_weight: float = 1.0,
        contended: tuple[bool, ...] = (),
        wanted: tuple[bool, ...] | None = None,
    ) -> float:
        """Charge a call at dispatch and return its charge factor (ALGORITHMS section 7).

        ``contended`` is true at the levels, outermost first, where a sibling of the client waits;
        the charges count in the other models there. ``wanted`` is given if some waiting calls need other
        workers, and is true at the levels where a sibling could use that one. ``typical`` is the app's
        typical call, in weighted tokens. ``weights`` are those of tenant, app and user. ``tier_weight``
        divides the charges at every level, so that the client's siblings lose nothing by it. The
        charge factor contains the product of all, since the layers behind the feeder have one weight
        for all levels.
        """
        per_token = 1.0 / (typical * tier_weight)
        charge_factor = per_token * self._reference / math.prod(weights)
        by_level = efforts_by_level(weights, len(node.path))
        even = min(by_level) == max(by_level)
        if even:
            per_token *= by_level[0]
        record = _Dispatched(
            node,
            seq,
            per_token,
            per_token * self._weights.gamma,
            factors=None if even else by_level,
        )
        if any(contended):
            record.elsewhere = tuple(map(mul, record.factors or repeat(1.0), contended))
        output = call.expected_output_tokens if self._profiles else 0
        expected = TokenUsage(call.input_tokens, call.system_tokens, cached_tokens, output)
        cost = self._cost(record, expected)
        if self._reserves:
            if wanted is not None:
                self._limit(record, wanted, cost)
            record.reserved = cost
            self._change(record, 0.0, cost)
        else:
            record.wanted, record.due = wanted, cost
            self._expect_end(record, cost)
        self._dispatched[call.call_id] = record
        return charge_factor

    def _limit(self, record: _Dispatched, wanted: tuple[bool, ...], cost: float) -> None:
        """Reduce the charges of a call of this cost where no waiting sibling could use its worker.

        It is charged up to the least served of them, less the margin: capacity that none of them could
        use is neither a debt nor a credit, and takes from a client that waits beside them, too, no turn
        that the slacks have put off. The client's running calls count, reserved or due.
        """
        if cost <= 0:
            return
        behind = self._counters.behind(record.node)
        whole = record.factors or (1.0,) * len(wanted)
        record.factors = tuple(
            each if used else min(each, max(0.0, least - due - self._margin) / cost)
            for each, used, least, due in zip(
                whole, wanted, behind, map(self._due_of, record.node.line), strict=True
            )
        )

    def _due_of(self, node: CounterNode) -> float:
        return self._due.get(node, 0.0)

    def _expect_end(self, record: _Dispatched, due: float) -> None:
        """Add to the expected charges of a call's client, where siblings wanted the worker."""
        line = record.node.line
        for node, used, factor in zip(
            line, record.wanted or repeat(True), record.factors or repeat(1.0), strict=False
        ):
            if used:
                left = self._due_of(node) + due * factor
                if left > _ROUNDING:
                    self._due[node] = left
                else:
                    self._due.pop(node, None)

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Charge a call for its usage so far. Raises KeyError if it is not dispatched."""
        if self._reserves:
            record = self._dispatched[call_id]
            self._charge_up_to(record, self._cost(record, usage))

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """Charge ``(call id, output tokens so far)`` of calls whose prompt was charged before."""
        if not self._reserves:
            return
        dispatched, realise = self._dispatched, self._counters.realise
        for call_id, output_tokens in totals:
            record = dispatched[call_id]
            cost = record.prompt_cost + record.per_output * output_tokens
            more = cost - record.charged
            if 0 < more <= record.reserved and record.factors is record.elsewhere is None:
                record.charged = cost  # hot loop: as below, with fewer steps
                record.reserved -= more
                realise(record.node, more)
            else:
                self._charge_up_to(record, cost)

    def _charge_up_to(self, record: _Dispatched, cost: float) -> None:
        more = cost - record.charged
        if more <= 0:
            return
        realised = min(more, record.reserved)
        record.charged = cost
        record.reserved -= realised
        self._change(record, more, -realised)

    def expect(self, call_id: str, output_tokens: int) -> None:
        """Raise the reservation of a call to this output; a smaller one changes nothing."""
        if self._reserves:
            record = self._dispatched[call_id]
            cost = record.prompt_cost + record.per_output * output_tokens
            more = cost - record.charged - record.reserved
            if more > 0:
                record.reserved += more
                self._change(record, 0.0, more)

    def finish(self, call_id: str, usage: TokenUsage) -> float:
        """End a call, release its unused reservation, and return the client's total charge for it."""
        record = self._dispatched.pop(call_id)
        cost = self._cost(record, usage)
        if record.due:
            self._expect_end(record, -record.due)
        if record.wanted is not None:
            self._limit(record, record.wanted, cost)
        self._charge_up_to(record, cost)
        self._leave(record)
        return record.charged * (1.0 if record.factors is None else record.factors[-1])

    def uncharge(self, call_id: str) -> int:
        """Reverse every charge of a call that was not served, and return its sequence number."""
        record = self._dispatched.pop(call_id)
        if record.due:
            self._expect_end(record, -record.due)
        if record.charged:
            self._change(record, -record.charged, 0.0)
        self._leave(record)
        return record.seq

    def _leave(self, record: _Dispatched) -> None:
        if record.reserved > 0:
            self._change(record, 0.0, -record.reserved)
        self._counters.done(record.node)

    def _change(self, record: _Dispatched, served: float, reserved: float) -> None:
        """Add to the counters of a call's client, here and in the other models."""
        counters, node = self._counters, record.node
        if record.factors is not None:
            counters.change(node, served, reserved, record.factors)
        elif served < 0:
            counters.refund(node, -served)
        elif served == 0:
            (counters.reserve if reserved > 0 else counters.release)(node, abs(reserved))
        else:
            if reserved:
                counters.realise(node, -reserved)
            if served > -reserved:
                counters.charge(node, served + reserved)
        if self.listener is not None and record.elsewhere is not None:
            self.listener(node.path, served, reserved, record.elsewhere)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, by call id."""
        return {
            call_id: [
                list(record.node.path),
                record.seq,
                record.per_token,
                record.reserved,
                record.charged,
                record.prompt_cost,
                record.factors,
                record.elsewhere,
                record.wanted,
                record.due,
            ]
            for call_id, record in self._dispatched.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot; the counters must be restored before."""
        self._dispatched, self._due = {}, {}
        for call_id, plain in state.items():
            path, seq, per_token, reserved, charged, prompt_cost, *by_level, due = plain
            factors, elsewhere, wanted = (
                None if each is None else tuple(each) for each in by_level
            )
            record = self._dispatched[call_id] = _Dispatched(
                self._counters.client(tuple(path)),
                seq,
                per_token,
                per_token * self._weights.gamma,
                reserved,
                charged,
                prompt_cost,
                factors,
                elsewhere,
                wanted,
                due,
            )
            self._expect_end(record, due)
