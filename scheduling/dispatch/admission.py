"""Admission of a call: access, contract limits, then throttling under overload.

Each rejection names which of the three caused it. A call rejected by its contract never reaches the
throttle, which counts only arrivals that are load. Contract reservations of an accepted call are
settled when it ends: a call that failed or waited too long is not charged.

A background call never meets the throttle, nor counts in it: it is no load that others are rejected
for, and it waits instead.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Any

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.errors import OpeningRateError
from fairserve.scheduling import events as ev
from fairserve.scheduling.directory import Directory, Setting, holder_of
from fairserve.throttling.base import ADMITTED, Decision, LimitUse, ThrottlingPolicy
from fairserve.throttling.overload.window import SlidingLog
from fairserve.throttling.quotas.contracts import Claim, Contracts, ContractUse, Holder
from fairserve.throttling.quotas.price import FREE, TokenPrice

BILLED: frozenset[ev.CallOutcome] = frozenset({"completed", "cancelled"})
"""Outcomes of calls that are billed; a client that disconnects pays for the tokens used so far."""


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Options of contract limits."""

    contracts: bool = True
    """Reject calls over contract limits; usage is counted in any case."""
    rates_cut_runs: bool = False
    """Apply rates to calls of active runs, too, as plain rate limits do. Budgets and parallel-call
    limits always apply to them."""
    openings_per_minute: int = 600
    """Maximum empty interactions that one user of an app may open per minute; they are not calls."""


@dataclass(frozen=True, slots=True)
class LimitsInUse:
    """Remaining contract and throttle limits for a user's next call."""

    contract: ContractUse = field(default_factory=ContractUse)
    throttle: LimitUse | None = None
    """Limit of the throttle; under some policies it binds under overload only."""


class Admission:
    """Decides about arriving calls and tracks the reservations of accepted ones."""

    def __init__(
        self, directory: Directory, throttle: ThrottlingPolicy, options: AdmissionOptions
    ) -> None:
        self.throttle = throttle
        self._directory = directory
        self._options = options
        self._contracts = Contracts()
        self._openings = SlidingLog()
        """Recent openings of empty interactions, by user of an app."""
        self._prices: dict[str, TokenPrice] = {}
        """Prices of the calls in progress."""

    # --- a call -----------------------------------------------------------------------------------

    def decide(
        self,
        event: ev.CallArrived,
        *,
        overloaded: bool,
        under_way: bool,
        immune: bool,
        expected_wait_s: float,
        now_s: float,
    ) -> Decision:
        """Return the decision about a call; an admitted call reserves its contract amounts.

        Contract rates do not apply to the calls of a run ``under_way``, nor does the throttle to those
        of an ``immune`` one.
        """
        call, directory = event.call, self._directory
        owner = (call.tenant, call.app, call.user)
        if directory.blocked(call.tenant, call.user):
            return Decision(admitted=False, reason="user_blocked", scope="user")
        if not directory.model_allowed(*owner, call.model):
            return Decision(admitted=False, reason="model_not_allowed")
        quotas = directory.quotas(*owner)
        output_tokens = call.samples * call.max_output_tokens
        claim = Claim(
            call.prompt_tokens + output_tokens,
            0 if event.price is FREE else event.price.most(call.prompt_tokens, output_tokens),
            event.at,
            under_way and not self._options.rates_cut_runs,
        )
        decision = ADMITTED
        if quotas and self._options.contracts:
            decision = self._contracts.check(quotas, claim, now_s)
        if decision.admitted and not call.background:
            arrival = directory.arrival(
                owner, overloaded=overloaded, under_way=immune, expected_wait_s=expected_wait_s
            )
            decision = self.throttle.check(arrival, now_s)
            self.throttle.commit(arrival, decision, now_s)
        if decision.admitted:
            self._contracts.reserve(call.call_id, quotas, claim, now_s)
            if event.price is not FREE:
                self._prices[call.call_id] = event.price
        return decision

    def open(self, owner: tuple[str, str, str], now_s: float) -> None:
        """Count an empty interaction that a user of an app opens; ``owner``: tenant, app and user.

        Raises OpeningRateError over ``openings_per_minute``; the opening then does not count.
        """
        key, most = "/".join(owner), self._options.openings_per_minute
        if self._openings.count(key, now_s) >= most:
            wait_s = self._openings.free_after_s(key, most, now_s, record_now=False)
            raise OpeningRateError(
                f"the user has opened {most:,} interactions within a minute; allowed: {most:,}",
                wait_s,
            )
        self._openings.record(key, most, now_s)

    def ended(
        self, call: Call, outcome: ev.CallOutcome, usage: TokenUsage, *, charged: bool = True
    ) -> None:
        """Settle an accepted call that ended."""
        price = self._prices.pop(call.call_id, None)
        self._contracts.settle(
            call.call_id,
            self._directory.quotas(call.tenant, call.app, call.user),
            usage.prompt_tokens + usage.output_tokens,
            0 if price is None else price.cost(usage),
            refund=outcome not in BILLED or not charged,
        )

    # --- settings and maintenance -----------------------------------------------------------------

    def take(self, event: Setting | ev.BudgetSpent) -> None:
        """Apply a setting, or spending reported by the ledger. Raises as the directory does."""
        if isinstance(event, ev.BudgetSpent):
            for holder, quota in self._directory.quotas(*event.owner):
                if event.scope in (None, holder[0]):
                    self._contracts.spent(holder, quota, event.amount, event.at)
            return
        if isinstance(event, ev.ContractChanged):
            holder = holder_of(event)
            if self._directory.quota(holder).period != event.quota.period:
                self._contracts.forget_accounts(
                    *holder
                )  # the ledger reports earlier spending again
        self._directory.take(event)

    def use(
        self, owner: tuple[str, str, str], *, overloaded: bool, now_s: float, at: float
    ) -> LimitsInUse:
        """Return the remaining limits; ``owner`` is tenant, app and user."""
        arrival = self._directory.arrival(owner, overloaded=overloaded, under_way=False)
        contract = ContractUse()
        if self._options.contracts:
            quotas = self._directory.quotas(*owner)
            contract = self._contracts.use(quotas, now_s, at)
        return LimitsInUse(contract, self.throttle.use(arrival, now_s))

    def quota_use(self, holder: Holder, *, now_s: float, at: float) -> ContractUse:
        """Return the use of the limits of one holder."""
        if not self._options.contracts:
            return ContractUse()
        return self._contracts.use([(holder, self._directory.quota_of(holder))], now_s, at)

    def forget_idle(self, now_s: float) -> None:
        """Drop idle state."""
        self.throttle.forget_idle(now_s)
        self._openings.forget_idle(now_s)
        self._contracts.forget_idle(now_s)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "throttle": self.throttle.snapshot(now_s),
            "openings": self._openings.snapshot(now_s),
            "contracts": self._contracts.snapshot(now_s),
            "prices": [[call_id, *astuple(price)] for call_id, price in self._prices.items()],
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self.throttle.restore(state["throttle"], now_s)
        self._openings.restore(state["openings"], now_s)
        self._contracts.restore(state["contracts"], now_s)
        self._prices = {call_id: TokenPrice(*price) for call_id, *price in state["prices"]}
