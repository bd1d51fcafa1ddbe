"""Contract limits at run time: reserve when a call is accepted, settle when it ends.

A call reserves, at each holder of limits that applies to it, one request, one parallel call, the
tokens of its prompt and maximum output, and their maximum cost. When it ends, tokens and cost are
corrected to the actual use; a failed call releases everything, and a rejected one reserves nothing.
So a hard budget is exceeded only if a worker generates more than was requested. Rates hold in any
60 seconds (:mod:`rate_window`), budgets in calendar periods (:mod:`periods`), both by the time at
which the call was accepted, which is also in its ledger row.

The calendar advances with the arrivals. An arrival up to ``LATE_S`` before another counts in the same
periods; an earlier one means that the clock has gone back, and the calendar follows it: an account of a
later period then becomes the account of the present one, with its spending.

Expected cost per call: a few dictionary look-ups for each of at most four holders, and at most 61
steps if a rate rejects. Memory: one meter per holder active in the last minutes, one account per
holder with spending in its period, at most ``MAX_ACCOUNTS``, and of a tenant or an app half of what the
others leave.

Weakness: reservations for the maximum output reject calls that would have fitted; such rejections
have the reason ``contract_budget_held`` and stop when calls end. What a period has spent is forgotten
when a later one begins, so a clock that returns from there begins the period anew.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.tracking.shared_table import tick_share
from fairserve.throttling.base import ADMITTED, Budget, Decision, LimitUse, Scope
from fairserve.throttling.quotas.quota import Quota, QuotaScope
from fairserve.throttling.quotas.rate_window import RateWindow

WINDOW_S = 60.0
"""Window of the rates of quotas, in seconds."""
PARALLEL_RETRY_S = 1.0
"""Seconds until a retry at the limit of parallel calls, since the end of a call is unpredictable."""
MAX_ACCOUNTS = 1_000_000
LATE_S = 60.0
"""Longest time by which arrivals may be out of order."""

Holder = tuple[QuotaScope, str, str]
"""Scope; tenant or app; user if the scope has one."""

_SCOPES: dict[QuotaScope, Scope] = {
    "tenant": "tenant",
    "app": "app",
    "app_user": "user",
    "user": "user",
}


class Claim(NamedTuple):
    """The amounts that a call requests. ``at`` is its arrival in UTC epoch seconds."""

    tokens: int
    """Tokens of the prompt and of the maximum output over all samples."""
    cost: int
    """Maximum cost in nanounits."""
    at: float
    run_under_way: bool = False
    """True if the run is active: neither rates nor a soft end reject the call, so it can finish."""


class BudgetUse(NamedTuple):
    """Use of a budget in its current period; nanounits."""

    limit: int
    spent: int
    held: int
    reset_s: float
    soft: bool
    """True if the soft limit is exceeded."""
    scope: Scope


class ContractUse(NamedTuple):
    """Remaining limits, each of the holder with the least left; None without such a limit."""

    requests: LimitUse | None = None
    tokens: LimitUse | None = None
    budget: BudgetUse | None = None
    parallel: LimitUse | None = None
    """Calls in progress; ``reset_s`` is 0, since their ends are unpredictable."""


@dataclass(slots=True)
class _Meter:
    """Rates and parallel calls of one holder."""

    requests: RateWindow = field(default_factory=lambda: RateWindow(WINDOW_S))
    tokens: RateWindow = field(default_factory=lambda: RateWindow(WINDOW_S))
    parallel: int = 0


@dataclass(slots=True, eq=False)
class _Account:
    """Current period of a budget; nanounits."""

    begin: float
    end: float
    spent: int = 0
    held: int = 0


class _Held(NamedTuple):
    """Reservations of a call in progress, by holder."""

    holders: tuple[Holder, ...]
    accounts: tuple[_Account | None, ...]
    """Account that has its cost reserved; None without a budget."""
    tokens: int
    cost: int
    at: float
    """Arrival in UTC epoch seconds, and on the monotonic clock."""
    at_s: float


class Contracts:
    """Limits of all holders of a deployment."""

    def __init__(self) -> None:
        self._meters: OrderedDict[Holder, _Meter] = OrderedDict()
        self._accounts: OrderedDict[Holder, _Account] = OrderedDict()
        """Both: the holder that a tick visited last is the last one."""
        self._accounts_of: Counter[str] = Counter()
        """Accounts by tenant or app; those without one have no entry."""
        self._calls: dict[str, _Held] = {}
        self._latest = 0.0
        """Latest arrival of any call since the clock went back last, in UTC epoch seconds."""

    # --- a call -----------------------------------------------------------------------------------

    def check(self, quotas: Sequence[tuple[Holder, Quota]], claim: Claim, now_s: float) -> Decision:
        """Return the decision about a call; changes nothing.

        Budgets are checked before rates: waiting for a rate does not help if a budget is exhausted.
        """
        for holder, quota in quotas:
            rejection = self._check_budget(holder, quota, claim)
            if rejection is not None:
                return rejection
        for holder, quota in quotas:
            rejection = self._check_rates(holder, quota, claim, now_s)
            if rejection is not None:
                return rejection
        return ADMITTED

    def _check_budget(self, holder: Holder, quota: Quota, claim: Claim) -> Decision | None:
        period = quota.period
        if period is None:
            return None
        begin, end = period.bounds(self._calendar(claim.at))
        account = self._accounts.get(holder)
        scope = _SCOPES[holder[0]]
        if account is None and self._full(holder[1]):
            return Decision(False, "contract_too_many_users", scope, retry_after_s=end - claim.at)
        spent = held = 0
        if account is not None and account.begin >= begin:
            spent, held = account.spent, account.held
        limit = quota.max_budget
        if limit is not None and spent + held + claim.cost > limit:
            if held and spent + claim.cost <= limit:
                reason, retry_s = "contract_budget_held", PARALLEL_RETRY_S
            else:
                reason, retry_s = "contract_budget", end - claim.at
            budget = Budget(limit, spent, held, claim.cost)
            return Decision(False, reason, scope, retry_after_s=retry_s, budget=budget)
        soft = quota.soft_budget
        if (
            soft is not None
            and quota.soft_end == "finish_runs"
            and spent >= soft
            and not claim.run_under_way
        ):
            reason, budget = "contract_soft_budget", Budget(soft, spent, held, claim.cost)
            return Decision(False, reason, scope, retry_after_s=end - claim.at, budget=budget)
        return None

    def _check_rates(
        self, holder: Holder, quota: Quota, claim: Claim, now_s: float
    ) -> Decision | None:
        scope = _SCOPES[holder[0]]
        if quota.tpm_limit is not None and claim.tokens > quota.tpm_limit:
            return Decision(
                False, "contract_call_too_large", scope, limit=quota.tpm_limit, count=claim.tokens
            )
        meter = self._meters.get(holder)
        if meter is None:
            return None
        limit = quota.max_parallel_requests
        if limit is not None and meter.parallel >= limit:
            return Decision(
                False,
                "contract_parallel",
                scope,
                limit=limit,
                count=meter.parallel + 1,
                retry_after_s=PARALLEL_RETRY_S,
            )
        if claim.run_under_way:
            return None
        found: Decision | None = None
        longest_s = -1.0
        for reason, limit, amount, window in (
            ("contract_rpm", quota.rpm_limit, 1, meter.requests),
            ("contract_tpm", quota.tpm_limit, claim.tokens, meter.tokens),
        ):
            if limit is None:
                continue
            window.drop_old(now_s)
            if window.total + amount <= limit:
                continue
            retry_s = window.free_after_s(limit - amount, now_s)
            if retry_s > longest_s:  # both may reject it: the later one decides when it may return
                longest_s = retry_s
                found = Decision(
                    False,
                    reason,
                    scope,
                    limit=limit,
                    window_s=WINDOW_S,
                    count=window.total + amount,
                    retry_after_s=retry_s,
                    certain=scope == "user",
                )
        return found

    def reserve(
        self, call_id: str, quotas: Sequence[tuple[Holder, Quota]], claim: Claim, now_s: float
    ) -> None:
        """Reserve the request of an accepted call until :meth:`settle`."""
        self._latest = self._calendar(claim.at)
        accounts: list[_Account | None] = []
        for holder, quota in quotas:
            meter = self._meters.get(holder)
            if meter is None:
                meter = self._meters[holder] = _Meter()
            meter.parallel += 1
            for window, amount in ((meter.requests, 1), (meter.tokens, claim.tokens)):
                window.drop_old(now_s)
                window.add(amount, now_s)
            account = self._account(holder, quota)
            accounts.append(account)
            if account is not None:
                account.held += claim.cost
        holders = tuple(holder for holder, _ in quotas)
        self._calls[call_id] = _Held(
            holders, tuple(accounts), claim.tokens, claim.cost, claim.at, now_s
        )

    def settle(
        self,
        call_id: str,
        quotas: Sequence[tuple[Holder, Quota]],
        tokens: int,
        cost: int,
        *,
        refund: bool,
    ) -> None:
        """Settle an accepted call that ended; with ``refund`` it is as if it had never been made.

        ``quotas`` are the current ones; the cost also counts in a budget that is newer than the
        call.
        """
        held = self._calls.pop(call_id)
        if refund:
            tokens = cost = 0
        for holder, account in zip(held.holders, held.accounts, strict=True):
            meter = self._meters[holder]
            meter.parallel -= 1
            meter.tokens.correct(tokens - held.tokens, held.at_s)
            if refund:
                meter.requests.correct(-1, held.at_s)
            if account is not None:
                account.held -= held.cost
        if cost:
            for holder, quota in quotas:
                self._spend(holder, quota, cost, held.at)

    def _calendar(self, at: float) -> float:
        """Return the time of the calendar at an arrival."""
        return at if at < self._latest - LATE_S else max(at, self._latest)

    def _account(self, holder: Holder, quota: Quota) -> _Account | None:
        """Return the account of the current period, created if needed; None without a place for it."""
        period = quota.period
        if period is None:
            return None
        begin, end = period.bounds(self._latest)
        account = self._accounts.get(holder)
        if account is None and self._full(holder[1]):
            return None
        if account is not None and account.begin > begin:
            account.begin, account.end = begin, end  # the clock has gone back
        elif account is None or account.begin != begin or account.end != end:
            self._accounts_of[holder[1]] += account is None
            account = self._accounts[holder] = _Account(begin, end)
        return account

    # --- spending and maintenance -----------------------------------------------------------------

    def spent(self, holder: Holder, quota: Quota, amount: int, at: float) -> None:
        """Add spending of a holder to the period that contains ``at``; negative amounts are refunds.
        Amounts of earlier periods than the current one are ignored.
        """
        self._latest = max(self._latest, at)
        self._spend(holder, quota, amount, at)

    def _spend(self, holder: Holder, quota: Quota, amount: int, at: float) -> None:
        account = self._account(holder, quota)
        if account is not None and at >= account.begin:  # later: the clock has gone back
            account.spent = max(0, account.spent + amount)

    def forget_accounts(self, scope: QuotaScope, owner: str, user: str = "") -> None:
        """Forget a holder's accounts because its budget periods change.

        The ledger reports their spending again. ``app_user`` means all users of the app: O(accounts).
        """
        if scope != "app_user" or user:
            if (scope, owner, user) in self._accounts:
                self._forget_account((scope, owner, user))
            return
        for holder in list(self._accounts):
            if holder[:2] == (scope, owner):
                self._forget_account(holder)

    def _forget_account(self, holder: Holder) -> None:
        del self._accounts[holder]
        self._accounts_of[holder[1]] -= 1
        if not self._accounts_of[holder[1]]:
            del self._accounts_of[holder[1]]

    def _full(self, owner: str) -> bool:
        """Return whether a tenant or an app has its accounts: half of what the others leave."""
        own = self._accounts_of[owner]
        return own >= max(1, (MAX_ACCOUNTS - len(self._accounts) + own) // 2)

    def use(self, quotas: Sequence[tuple[Holder, Quota]], now_s: float, at: float) -> ContractUse:
        """Return the remaining limits; changes nothing."""
        requests: list[LimitUse] = []
        tokens: list[LimitUse] = []
        parallel: list[LimitUse] = []
        budgets: list[BudgetUse] = []
        for holder, quota in quotas:
            scope = _SCOPES[holder[0]]
            meter = self._meters.get(holder) or _Meter()
            for limit, window, found in (
                (quota.rpm_limit, meter.requests, requests),
                (quota.tpm_limit, meter.tokens, tokens),
            ):
                if limit is not None:
                    total = window.total_at(now_s)
                    reset_s = window.free_after_s(0, now_s) if total else 0.0
                    found.append(LimitUse(limit, min(limit, total), reset_s, scope))
            if (limit := quota.max_parallel_requests) is not None:
                parallel.append(LimitUse(limit, min(limit, meter.parallel), 0.0, scope))
            if quota.period is not None:
                begin, end = quota.period.bounds(self._calendar(at))
                account = self._accounts.get(holder)
                if account is None or account.begin < begin:
                    account = _Account(begin, end)
                soft = quota.soft_budget is not None and account.spent >= quota.soft_budget
                if quota.max_budget is not None or soft:
                    limit = quota.max_budget if quota.max_budget is not None else account.spent
                    budgets.append(
                        BudgetUse(limit, account.spent, account.held, end - at, soft, scope)
                    )
        return ContractUse(
            min(requests, key=_left, default=None),
            min(tokens, key=_left, default=None),
            min(
                budgets,
                key=lambda use: (not use.soft, use.limit - use.spent - use.held),
                default=None,
            ),
            min(parallel, key=_left, default=None),
        )

    def forget_idle(self, now_s: float) -> None:
        """Drop meters of holders without a call in the last minute, and accounts of past periods.

        Visits a share of both; called about once a second.
        """
        for _ in range(tick_share(len(self._meters))):
            holder, meter = next(iter(self._meters.items()))
            meter.requests.drop_old(now_s)
            meter.tokens.drop_old(now_s)
            if meter.parallel or meter.requests.total or meter.tokens.total:
                self._meters.move_to_end(holder)
            else:
                del self._meters[holder]
        for _ in range(tick_share(len(self._accounts))):
            holder, account = next(iter(self._accounts.items()))
            if account.end <= self._latest:
                self._forget_account(holder)
            else:
                self._accounts.move_to_end(holder)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times, except calendar periods."""
        return {
            "meters": [
                [
                    *holder,
                    meter.requests.snapshot(now_s),
                    meter.tokens.snapshot(now_s),
                    meter.parallel,
                ]
                for holder, meter in self._meters.items()
            ],
            "accounts": [
                [*holder, account.begin, account.end, account.spent, account.held]
                for holder, account in self._accounts.items()
            ],
            "calls": [
                [
                    call_id,
                    list(held.holders),
                    [
                        account is not None and account is self._accounts.get(holder)
                        for holder, account in zip(held.holders, held.accounts, strict=True)
                    ],
                    held.tokens,
                    held.cost,
                    held.at,
                    age_of(held.at_s, now_s),
                ]
                for call_id, held in self._calls.items()
            ],
            "latest": self._latest,
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._meters = OrderedDict()
        for scope, owner, user, requests, tokens, parallel in state["meters"]:
            meter = self._meters[(scope, owner, user)] = _Meter(parallel=parallel)
            meter.requests.restore(requests, now_s)
            meter.tokens.restore(tokens, now_s)
        self._accounts = OrderedDict(
            ((scope, owner, user), _Account(*amounts))
            for scope, owner, user, *amounts in state["accounts"]
        )
        self._accounts_of = Counter(owner for _, owner, _ in self._accounts)
        self._calls = {}
        for call_id, holders, current, tokens, cost, at, age in state["calls"]:
            keys = tuple((scope, owner, user) for scope, owner, user in holders)
            accounts = tuple(
                self._accounts[key] if reserved else None
                for key, reserved in zip(keys, current, strict=True)
            )
            self._calls[call_id] = _Held(keys, accounts, tokens, cost, at, time_of(age, now_s))
        self._latest = state["latest"]


def _left(use: LimitUse) -> int:
    return use.remaining
