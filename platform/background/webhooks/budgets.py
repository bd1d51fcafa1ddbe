"""Detect reached budget limits, and shares of them, when the ledger writes the calls that reach them.

Control has the spending of a budget in memory and reports it only in the response to the next call, and
a soft budget that warns is not recorded. Therefore the subject's spending in its period is read from the
database (:mod:`fairserve.platform.reporting.usage.spending`) and compared with its quota. A
rejection for a spent budget counts, too.

Cost, only for tenants with an endpoint for budgets: two queries per batch, and one sum per subject at
its first call, then once a minute while it spends (less often if a sum is slow), and when the spending
since the last sum may have reached a limit. The state in memory only decides when to read the database;
a replay, a rollback or another server therefore cannot cause a wrong event.

Weakness: with several servers the event is up to a minute late and needs another call of the subject.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.background.webhooks.event_types import EventType
from fairserve.platform.background.webhooks.events import Event, event_id, time_text
from fairserve.platform.base.money import NANO
from fairserve.platform.control.messages import CallRecord
from fairserve.platform.db.base import NAME_CHARS
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.upsert import fitting_text
from fairserve.platform.db.webhooks import WebhookEvent
from fairserve.platform.reporting.usage.spending import Spender, spent_in_period
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.throttling.quotas.periods import parse_duration

CHECK_S = 60.0
REST = 20
"""Minimum pause after a sum, as a multiple of its duration, unless a limit may be reached."""
MAX_HOLDERS = 10_000
"""Maximum number of subjects in memory; the least recently used is dropped and summed again later."""
_IDS = 500

SHARES = (0.5, 0.8)
"""Shares of a hard limit whose spending has an event."""
BUDGET_EVENTS = frozenset({"budget.reached", "budget.share"})

End = Literal["soft", "hard"]
Mark = End | float
"""A limit, or a share of the hard one: it has an event when it is reached."""
_REFUSED: Mapping[str, End] = {"contract_budget": "hard", "contract_soft_budget": "soft"}
_SCOPE_OF = {"tenant": "tenant", "app": "app", "app_user": "user", "user": "user"}
"""Names of the subjects in rejections."""


class _Budget(NamedTuple):
    """A subject's budget in one period."""

    holder: Holder
    duration: str
    begin: float
    end: float


@dataclass(slots=True)
class _Met:
    """A batch's calls that count against one budget."""

    marks: dict[Mark, int]
    """Spending at which each mark is reached."""
    hard: int | None
    last: CallRecord
    cost: int = 0
    refused: set[Mark] = field(default_factory=set)


@dataclass(slots=True)
class _Known:
    """State of one budget: its last sum, and the spending since then."""

    spent: int
    next_s: float
    """Time by which the next sum is due."""


class BudgetWatch:
    """Detector of reached limits. Not thread-safe: it belongs to the ledger's thread."""

    def __init__(self, currency: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._currency = currency
        self._monotonic_s = monotonic_s
        self._known: SharedTable[_Budget, _Known] = SharedTable(MAX_HOLDERS)

    def reached(
        self,
        session: Session,
        calls: Sequence[CallRecord],
        anonymous: Collection[str],
        wanted: Mapping[str, Collection[str]],
        now: float,
    ) -> list[Event]:
        """Return the marks reached by these calls, which this transaction writes, that have no event
        yet. ``anonymous`` has the ids of calls of erased users, which are not attributed to a user;
        ``wanted`` the types of events by tenant.
        """
        found = _met(session, calls, anonymous, wanted, now)
        ids = {
            (budget, mark): _event_id(budget, mark, limit)
            for budget, met in found.items()
            for mark, limit in met.marks.items()
        }
        existing = _existing(session, list(ids.values()))
        events = []
        for budget, met in found.items():
            left = [mark for mark in met.marks if ids[budget, mark] not in existing]
            if not left:
                continue
            least = min(met.marks[mark] for mark in left)
            refused = not met.refused.isdisjoint(left)
            spent = self._spent(session, budget, met.cost, least, refused)
            events += [
                self._event(ids[budget, mark], budget, mark, met, spent)
                for mark in left
                if mark in met.refused or (spent is not None and spent >= met.marks[mark])
            ]
        return events

    def _spent(
        self, session: Session, budget: _Budget, added: int, least: int, ask: bool
    ) -> int | None:
        """Return the spending; None if a sum is not due or not available."""
        began_s = self._monotonic_s()
        known = self._known.get(budget)
        if known is not None:
            self._known.touch(budget)
            known.spent += added
            if not ask and known.spent < least and began_s < known.next_s:
                return None
        holder = budget.holder
        spender = Spender(holder.tenant_id, holder.app_id, holder.user_id)
        spent = spent_in_period(session, spender, budget.begin, budget.end)
        now_s = self._monotonic_s()
        next_s = now_s + max(CHECK_S, REST * (now_s - began_s))
        if spent is not None:
            self._known.put((holder.tenant_id,), budget, _Known(spent, next_s))
        return spent

    def _event(
        self, identity: str, budget: _Budget, mark: Mark, met: _Met, spent: int | None
    ) -> Event:
        holder = budget.holder
        is_share = isinstance(mark, float)
        limit = met.hard if is_share else met.marks[mark]
        assert limit is not None
        return Event(
            id=identity,
            tenant=holder.tenant_id,
            type=_type_of(mark),
            user=holder.user_id,
            at=met.last.ended_at,
            origin=met.last.accepted_at,
            data={
                "scope": holder.scope,
                "app_id": holder.app_id or None,
                "user": holder.user_id or None,
                "share" if is_share else "end": mark,
                "limit": _amount(limit),
                "spent": None if spent is None else _amount(spent),
                "currency": self._currency,
                "budget_duration": budget.duration,
                "period_begin": time_text(budget.begin),
                "period_end": time_text(budget.end),
            },
        )


def _met(
    session: Session,
    calls: Sequence[CallRecord],
    anonymous: Collection[str],
    wanted: Mapping[str, Collection[str]],
    now: float,
) -> dict[_Budget, _Met]:
    """Return the budgets of these calls in periods that have not ended."""
    telling = [call for call in calls if call.cost > 0 or call.refusal_reason in _REFUSED]
    contracts = _contracts(session, telling)
    found: dict[_Budget, _Met] = {}
    for call in telling:
        for holder, contract in _held(contracts, call, call.call_id in anonymous):
            duration = contract.budget_duration
            assert duration is not None
            begin, end = parse_duration(duration).bounds(call.accepted_at)
            if end <= now:
                continue
            marks = {
                mark: limit
                for mark, limit in _marks(contract).items()
                if _type_of(mark) in wanted[call.tenant]
            }
            budget = _Budget(holder, duration, begin, end)
            met = found.setdefault(budget, _Met(marks, contract.max_budget, call))
            met.last = max(met.last, call, key=lambda each: each.ended_at)
            met.cost += call.cost
            refused = _REFUSED.get(call.refusal_reason)
            if refused in marks and call.refusal_scope == _SCOPE_OF[holder.scope]:
                met.refused.add(refused)
    return found


def _marks(contract: Contract) -> dict[Mark, int]:
    marks: dict[Mark, int] = {}
    if contract.soft_budget is not None:
        marks["soft"] = contract.soft_budget
    if contract.max_budget is not None:
        marks["hard"] = contract.max_budget
        marks |= {share: math.ceil(share * contract.max_budget) for share in SHARES}
    return marks


def _type_of(mark: Mark) -> EventType:
    return "budget.share" if isinstance(mark, float) else "budget.reached"


def _contracts(session: Session, calls: Sequence[CallRecord]) -> dict[Holder, Contract]:
    """Return the quotas with budgets of these calls."""
    if not calls:
        return {}
    users = sorted({_user(call) for call in calls})
    found: dict[Holder, Contract] = {}
    for start in range(0, len(users), _IDS):
        rows = session.scalars(
            select(Contract).where(
                Contract.tenant_id.in_({call.tenant for call in calls}),
                Contract.app_id.in_({"", *(call.app for call in calls)}),
                or_(Contract.user_id == "", Contract.user_id.in_(users[start : start + _IDS])),
                Contract.budget_duration.is_not(None),
            )
        )
        for row in rows:
            found[Holder(row.tenant_id, row.scope, row.app_id, row.user_id)] = row  # type: ignore[arg-type]  # the column holds no other scope
    return found


def _held(
    contracts: Mapping[Holder, Contract], call: CallRecord, anonymous: bool
) -> Iterator[tuple[Holder, Contract]]:
    """Yield the subjects of a call's budgets; a user's quota replaces that of each user."""
    tenant, app, user = call.tenant, call.app, _user(call)
    for holder in (Holder(tenant, "tenant"), Holder(tenant, "app", app)):
        if holder in contracts:
            yield holder, contracts[holder]
    if anonymous:
        return
    own = Holder(tenant, "user", "", user)
    each = Holder(tenant, "app_user", app)
    if own in contracts:
        yield own, contracts[own]
    elif each in contracts:
        yield each._replace(user_id=user), contracts[each]


def _existing(session: Session, ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(ids), _IDS):
        part = ids[start : start + _IDS]
        found.update(session.scalars(select(WebhookEvent.id).where(WebhookEvent.id.in_(part))))
    return found


def _event_id(budget: _Budget, mark: Mark, limit: int) -> str:
    tenant, *holder = budget.holder
    return event_id(tenant, _type_of(mark), *holder, budget.duration, budget.begin, mark, limit)


def _user(call: CallRecord) -> str:
    return fitting_text(call.user, NAME_CHARS)


def _amount(nano: int) -> float:
    return float(Decimal(nano) / NANO)
