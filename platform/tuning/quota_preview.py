"""Counts the accepted calls of the last hour that a proposed limit of a quota would have rejected.

The calls of the ledger are replayed in the order of their arrival through the quotas of the core
(:class:`~fairserve.throttling.quotas.contracts.Contracts`), each proposed limit alone. At most
``MAX_ROWS`` calls are read, the latest ones; with more, the answer is about a shorter time. A minute
before it fills the windows. A budget begins with what its period had spent before.

Cost: one query by an index, and about 10 us for each call and limit, in a thread; for a budget the sums
of its period, too.

Weakness: calls in progress are not in the ledger yet. Tokens and costs are those that a call used, not
those of the longest answer, which it reserves while it runs, and a run that began before the hour begins
with its first call in it. Calls that were rejected then are counted and not judged again, since their
use is unknown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, model_validator
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.base.money import Amount, nano_of
from fairserve.platform.db.base import utc_time
from fairserve.platform.db.identity import App
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.schemas import FieldError, ObjectId, TenantQuery, UserId
from fairserve.platform.reporting.usage.spending import spent_before
from fairserve.platform.tenancy.quotas.repository import of_users
from fairserve.platform.tenancy.quotas.schemas import Duration, Limit
from fairserve.platform.tenancy.quotas.service import contract_changed
from fairserve.platform.tenancy.settings import QuotaEnforcement
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.admission import BILLED
from fairserve.scheduling.events import BudgetSpent, ContractChanged
from fairserve.throttling.quotas.contracts import WINDOW_S, Claim, Contracts, Holder
from fairserve.throttling.quotas.quota import Quota, QuotaScope

SPAN = timedelta(hours=1)
MAX_ROWS = 10_000
"""Calls that are replayed at most: about 0.1 s for a limit."""
LOOKED_UP = 500
"""Maximum number of users in one statement."""

PreviewedLimit = Literal["rpm_limit", "tpm_limit", "max_parallel_requests", "max_budget"]
LIMITS: tuple[PreviewedLimit, ...] = get_args(PreviewedLimit)


class QuotaPreviewQuery(TenantQuery):
    """The subject of a quota, and the proposed limits."""

    app: ObjectId | None = None
    """The app whose quota it is; without app and user it is the tenant's."""
    each_user: bool = False
    """The quota of each user of the app instead of that of the app as a whole."""
    user: UserId | None = None
    """The user, across the tenant's apps, whose quota it is."""
    rpm_limit: Limit | None = None
    """Calls in any 60 seconds; so are the fields of a quota."""
    tpm_limit: Limit | None = None
    max_parallel_requests: Limit | None = None
    max_budget: Amount | None = None
    budget_duration: Duration | None = None

    @property
    def scope(self) -> QuotaScope:
        """Return the scope of the quota."""
        if self.user is not None:
            return "user"
        if self.app is None:
            return "tenant"
        return "app_user" if self.each_user else "app"

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if self.user is not None and self.app is not None:
            raise FieldError(
                "user", "user must be omitted with app: a user's quota is for all apps"
            )
        if self.each_user and self.app is None:
            raise FieldError("each_user", "each_user is true; it needs an app")
        if self.max_budget is not None and self.budget_duration is None:
            raise FieldError("max_budget", "max_budget needs a budget_duration")
        return self


class LimitPreviewOut(BaseModel):
    """The effect of one proposed limit alone."""

    limit: int | Amount
    rejected: int
    """Accepted calls that it would have rejected."""


class QuotaPreviewOut(BaseModel):
    """The replayed calls, and the effect of each proposed limit on them."""

    since: datetime
    """Begin of the replayed time: an hour ago, or later if there were more than 10,000 calls."""
    whole: bool
    """True if the replayed time is the whole hour."""
    until: datetime
    accepted: int
    """Accepted calls since then that have ended."""
    rejected: int
    """Calls that were rejected then, for any reason; they are not replayed."""
    limits: dict[PreviewedLimit, LimitPreviewOut]
    """By the name of the limit; a limit that is not proposed has no entry."""


class ReplayedCall(NamedTuple):
    """An accepted call of the ledger. Times are UTC epoch seconds."""

    call_id: str
    app: str
    user: str
    run: str
    accepted_at: float
    ended_at: float
    tokens: int
    """Tokens of the prompt and the output."""
    refunded: bool
    """True if it counts for nothing once it has ended."""
    cost: int = 0
    """Nanounits."""


@dataclass(frozen=True, slots=True)
class QuotaReplay:
    """The calls of a quota's subject, in the order of their arrival, and who has a quota of its own."""

    tenant: str
    scope: QuotaScope
    app: str
    user: str
    calls: Sequence[ReplayedCall]
    own: Sequence[ContractChanged] = ()
    """Quotas of single users, which replace that of the scope ``app_user``."""
    rates_cut_runs: bool = False
    budget_duration: str | None = None
    """Period of a proposed budget."""
    spent: Sequence[BudgetSpent] = ()
    """Spending of the period of the first call before it."""

    def rejected(self, limit: PreviewedLimit, value: int, since: float) -> int:
        """Return how many calls from ``since`` on a limit alone would have rejected; nanounits."""
        directory, contracts = Directory(), Contracts()
        for each in self.own:
            directory.take(each)
        proposed: dict[str, Any] = {limit: value}
        if limit == "max_budget":
            proposed["budget_duration"] = self.budget_duration
        quota = Quota(**proposed)
        directory.take(ContractChanged(self.scope, self.tenant, self.app, self.user, quota))
        running: list[tuple[float, int, ReplayedCall]] = []
        runs: set[tuple[str, str]] = set()
        rejected = 0

        def quotas_of(app: str, user: str) -> list[tuple[Holder, Quota]]:
            found = directory.quotas(self.tenant, app, user)
            return [each for each in found if each[0][0] == self.scope]

        def quotas(call: ReplayedCall) -> list[tuple[Holder, Quota]]:
            return quotas_of(call.app, call.user)

        for spending in self.spent:
            for holder, held in quotas_of(*spending.owner[1:]):
                contracts.spent(holder, held, spending.amount, spending.at)
        for number, call in enumerate(self.calls):
            now_s = call.accepted_at
            while running and running[0][0] <= now_s:
                over = heapq.heappop(running)[2]
                contracts.settle(
                    over.call_id, quotas(over), over.tokens, over.cost, refund=over.refunded
                )
            run = (call.app, call.run)
            claim = Claim(call.tokens, call.cost, now_s, run in runs and not self.rates_cut_runs)
            if not contracts.check(quotas(call), claim, now_s).admitted:
                rejected += now_s >= since
                continue
            contracts.reserve(call.call_id, quotas(call), claim, now_s)
            runs.add(run)
            heapq.heappush(running, (call.ended_at, number, call))
        return rejected


def quota_preview(
    session: Session,
    tenant: str,
    query: QuotaPreviewQuery,
    enforcement: QuotaEnforcement,
    now: datetime,
) -> QuotaPreviewOut:
    """Return what the proposed limits would have rejected among a tenant's calls.

    Raises NotFoundError for an app that is not the tenant's.
    """
    if query.app is not None:
        owner = session.scalar(select(App.tenant_id).where(App.id == query.app))
        if owner != tenant:
            raise NotFoundError("there is no such app", param="app")
    of_subject = (
        LedgerCall.tenant_id == tenant,
        *([] if query.app is None else [LedgerCall.app_id == query.app]),
        *([] if query.user is None else [LedgerCall.user_id == query.user]),
    )
    since = now - SPAN
    calls = _calls(session, of_subject, since - timedelta(seconds=WINDOW_S))
    if len(calls) == MAX_ROWS:
        first = utc_time(calls[0].accepted_at + WINDOW_S)
        since = min(now, max(since, first))
    subject = query.scope, tenant, query.app or "", query.user or ""
    period = Quota(budget_duration=query.budget_duration)
    replay = QuotaReplay(
        tenant,
        *(query.scope, query.app or "", query.user or ""),
        calls,
        list(_own(session, tenant, calls)) if query.scope == "app_user" else (),
        enforcement == "every_call",
        query.budget_duration,
        spent_before(session, ContractChanged(*subject, period), since.timestamp() - WINDOW_S),
    )
    proposed = {name: getattr(query, name) for name in LIMITS if getattr(query, name) is not None}
    return QuotaPreviewOut(
        since=since,
        whole=since == now - SPAN,
        until=now,
        accepted=sum(each.accepted_at >= since.timestamp() for each in calls),
        rejected=_rejected(session, of_subject, since),
        limits={
            name: LimitPreviewOut(
                limit=value,
                rejected=replay.rejected(
                    name,
                    nano_of(value) if name == "max_budget" else value,
                    since.timestamp(),
                ),
            )
            for name, value in proposed.items()
        },
    )


def _calls(
    session: Session, of_subject: Iterable[ColumnElement[bool]], since: datetime
) -> list[ReplayedCall]:
    """Return the latest accepted calls, the oldest first."""
    rows = session.execute(
        select(
            LedgerCall.call_id,
            LedgerCall.app_id,
            LedgerCall.user_id,
            LedgerCall.interaction_id,
            LedgerCall.accepted_at,
            LedgerCall.ended_at,
            LedgerCall.input_tokens + LedgerCall.system_tokens + LedgerCall.output_tokens,
            LedgerCall.outcome,
            LedgerCall.charged,
            LedgerCall.cost,
        )
        .where(
            *of_subject,
            LedgerCall.accepted_at >= since,
            LedgerCall.outcome != "refused",
            LedgerCall.shared_by.is_(None),
        )
        .order_by(LedgerCall.accepted_at.desc(), LedgerCall.call_id)
        .limit(MAX_ROWS)
    )
    found = [
        ReplayedCall(
            call_id,
            app,
            user,
            run,
            accepted_at.timestamp(),
            ended_at.timestamp(),
            tokens,
            outcome not in BILLED or not charged,
            cost,
        )
        for call_id, app, user, run, accepted_at, ended_at, tokens, outcome, charged, cost in rows
    ]
    found.reverse()
    return found


def _rejected(session: Session, of_subject: Iterable[ColumnElement[bool]], since: datetime) -> int:
    """Return the number of rejected calls; the rows of a flood share rows and are few."""
    rejected = select(func.sum(func.coalesce(LedgerCall.shared_by, 1))).where(
        *of_subject, LedgerCall.accepted_at >= since, LedgerCall.outcome == "refused"
    )
    return int(session.scalar(rejected) or 0)


def _own(session: Session, tenant: str, calls: Iterable[ReplayedCall]) -> Iterator[ContractChanged]:
    """Yield the quotas of single users among those of the calls."""
    users = [(tenant, user) for user in sorted({call.user for call in calls})]
    for first in range(0, len(users), LOOKED_UP):
        for row in of_users(session, users[first : first + LOOKED_UP]).values():
            yield contract_changed(row)
