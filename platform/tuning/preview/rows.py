"""Database queries of a preview: a bounded number of ledger rows of the window, newest first, and the
settings of their tenants, apps and users. Rows are read in pages, users in batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Row, Select, and_, func, or_, select
from sqlalchemy.orm import Session, selectinload

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.identity import App, EndUser, Tenant
from fairserve.platform.db.ledger import LedgerCall, ThrottlingEvent
from fairserve.platform.db.operations import ThrottlingSetting
from fairserve.platform.db.rows import count
from fairserve.platform.tenancy.apps.control_events import app_changed, tenant_changed, user_changed
from fairserve.platform.tenancy.profiles.repository import profiles_in_force
from fairserve.platform.tenancy.quotas.repository import Holder, of_apps, of_tenants, of_users
from fairserve.platform.tenancy.quotas.service import contract_changed
from fairserve.platform.tuning.preview.input import RejectedCall, ServedCall
from fairserve.scheduling.directory import Setting
from fairserve.scheduling.events import AppChanged

PAGE_ROWS = 1000
LOOKED_UP = 500
"""Maximum number of names in one statement."""

T = TypeVar("T")


_CALL = (
    LedgerCall.accepted_at,
    LedgerCall.call_id,
    LedgerCall.tenant_id,
    LedgerCall.app_id,
    LedgerCall.user_id,
    func.coalesce(LedgerCall.served_model, LedgerCall.model),
    LedgerCall.interaction_id,
)
"""Columns of every call; those from the tenant on are the first fields of its value."""


def served_calls(session: Session, from_at: float, until_at: float, most: int) -> list[ServedCall]:
    """Return the ``most`` most recent accepted calls that arrived in this time, newest first."""
    columns = select(
        *_CALL,
        LedgerCall.stage,
        LedgerCall.outcome,
        LedgerCall.input_tokens,
        LedgerCall.system_tokens,
        LedgerCall.cached_tokens,
        LedgerCall.output_tokens,
        LedgerCall.queue_delay_s,
        LedgerCall.ttft_s,
        LedgerCall.duration_s,
    ).where(LedgerCall.outcome != "refused", LedgerCall.shared_by.is_(None))
    return [
        ServedCall._make([call_id, *owner, stage, outcome, at.timestamp(), *rest])
        for at, call_id, owner, (stage, outcome, *rest) in _calls(
            session, columns, from_at, until_at, most
        )
    ]


def refused_calls(
    session: Session, from_at: float, until_at: float, most: int
) -> list[RejectedCall]:
    """Return the ``most`` most recent rejected calls that arrived in this time, newest first."""
    columns = (
        select(*_CALL, ThrottlingEvent.reason, ThrottlingEvent.mid_run)
        .join(ThrottlingEvent, ThrottlingEvent.call_id == LedgerCall.call_id)
        .where(LedgerCall.outcome == "refused", LedgerCall.shared_by.is_(None))
    )
    return [
        RejectedCall._make([*owner, at.timestamp(), *rest])
        for at, _, owner, rest in _calls(session, columns, from_at, until_at, most)
    ]


def _calls(
    session: Session, columns: Select[*tuple[Any, ...]], from_at: float, until_at: float, most: int
) -> Iterator[tuple[datetime, str, Sequence[Any], Sequence[Any]]]:
    """Yield time and id of each call, its first fields, and what follows ``_CALL``."""
    for row in _pages(session, columns, from_at, until_at, most):
        at, call_id, *fields = row
        yield at, call_id, fields[: len(_CALL) - 2], fields[len(_CALL) - 2 :]


def changes_since(session: Session, at: float) -> int:
    """Return the number of versions of the throttling settings since a time."""
    made = ThrottlingSetting.created_at >= datetime.fromtimestamp(at, UTC)
    return count(session, select(ThrottlingSetting).where(made))


def settings_of(
    session: Session,
    rows: Iterable[ServedCall | RejectedCall],
    learning: LearningOptions | None,
) -> list[Setting]:
    """Return weights, limits, profiles and quotas of the subjects of these rows, in a stable order."""
    users = sorted({(row.tenant, row.user) for row in rows})
    tenants = sorted({tenant for tenant, _ in users})
    app_ids = sorted({row.app for row in rows})
    events: list[Setting] = []
    contracts: dict[Holder, Contract] = {}
    for names in _portions(tenants):
        found = session.scalars(select(Tenant).where(Tenant.id.in_(names)).order_by(Tenant.id))
        events += [tenant_changed(tenant) for tenant in found]
        contracts |= of_tenants(session, names)
    for names in _portions(app_ids):
        apps = session.scalars(
            select(App)
            .options(selectinload(App.stages), selectinload(App.limits))
            .where(App.id.in_(names))
            .order_by(App.id)
        ).all()
        profiles = profiles_in_force(session, apps, learning)
        events += [_replayed(app_changed(app, profiles[app.id])) for app in apps]
        contracts |= of_apps(session, names)
    for pairs in _portions(users):
        events += [user_changed(user) for user in _end_users(session, pairs)]
        contracts |= of_users(session, pairs)
    return events + [contract_changed(contracts[holder]) for holder in sorted(contracts)]


def _replayed(app: AppChanged) -> AppChanged:
    """Drop the limit of new users: all users are new in a replay, and would be rejected."""
    return replace(app, limits=replace(app.limits, new_users=None))


def _end_users(session: Session, pairs: Collection[tuple[str, str]]) -> Sequence[EndUser]:
    """Return the users with settings; may include users of other tenants with the same id."""
    return session.scalars(
        select(EndUser)
        .where(
            EndUser.tenant_id.in_({tenant for tenant, _ in pairs}),
            EndUser.external_id.in_({user for _, user in pairs}),
        )
        .order_by(EndUser.tenant_id, EndUser.external_id)
    ).all()


def _portions(names: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(names), LOOKED_UP):
        yield names[first : first + LOOKED_UP]


def _pages(
    session: Session, columns: Select[*tuple[Any, ...]], from_at: float, until_at: float, most: int
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield rows newest first, by time and id."""
    at, call_id = LedgerCall.accepted_at, LedgerCall.call_id
    window = columns.where(
        at >= datetime.fromtimestamp(from_at, UTC), at <= datetime.fromtimestamp(until_at, UTC)
    ).order_by(at.desc(), call_id.desc())
    page, left = window, most
    while left > 0:
        rows = session.execute(page.limit(min(PAGE_ROWS, left))).all()
        yield from rows
        left -= len(rows)
        if len(rows) < PAGE_ROWS:
            return
        last = rows[-1]
        page = window.where(
            or_(at < last.accepted_at, and_(at == last.accepted_at, call_id < last.call_id))
        )
