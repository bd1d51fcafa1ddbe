"""Stored data of one end user of a tenant, by kind, in pages of rows.

Each page is read in its own transaction, from the end of the previous one, so that neither a slow reader
nor a long erasure holds locks. The kinds cover all tables that name users: add new tables here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, select, true, tuple_

from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.identity import EndUser
from fairserve.platform.db.ledger import (
    LedgerCall,
    LedgerInteraction,
    OpenInteraction,
    ThrottlingEvent,
)
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.programs import ProgramRow
from fairserve.platform.db.responses import StoredConversation, StoredResponse
from fairserve.platform.db.webhooks import WebhookEvent

PAGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class RecordKind:
    """Rows about a user in one table."""

    name: str
    model: Any
    order: tuple[str, ...]
    """Columns that are unique within a tenant."""
    time: str | None = None
    """Column of the rows' time."""
    user: str = "user_id"
    more: ColumnElement[bool] = field(default_factory=true)
    """Further condition for the rows that name a user in the column ``user``."""

    def about(self, tenant_id: str, user: str) -> ColumnElement[bool]:
        """Return the condition for the rows about a user."""
        model = self.model
        return and_(model.tenant_id == tenant_id, getattr(model, self.user) == user, self.more)


_AT_OPENING, _AT_CREATION = "opened_at", "created_at"
_OF_APP = ("app_id", "id")
SETTINGS = RecordKind("settings", EndUser, ("external_id",), user="external_id")
CONTRACTS = RecordKind("contracts", Contract, ("scope", "app_id"), more=Contract.scope == "user")
INTERACTIONS = RecordKind("interactions", LedgerInteraction, _OF_APP, _AT_OPENING)
OPEN_INTERACTIONS = RecordKind("open_interactions", OpenInteraction, _OF_APP, _AT_OPENING)
CALLS = RecordKind("calls", LedgerCall, ("accepted_at", "call_id"), "accepted_at")
REFUSALS = RecordKind("refusals", ThrottlingEvent, ("at", "call_id"), "at")
PROGRAMS = RecordKind("programs", ProgramRow, _OF_APP, _AT_CREATION)
RESPONSES = RecordKind("responses", StoredResponse, _OF_APP, _AT_CREATION)
CONVERSATIONS = RecordKind("conversations", StoredConversation, _OF_APP, _AT_CREATION)
WEBHOOK_EVENTS = RecordKind("webhook_events", WebhookEvent, ("id",), "origin_at")
EXPORTS = RecordKind("exports", ReportExport, ("created_at", "id"), _AT_CREATION)
ALARMS = RecordKind("alarms", AlarmRow, ("id",), _AT_OPENING)
AUDIT = RecordKind(
    "audit", AuditEntry, ("at", "id"), user="target", more=AuditEntry.action.like("user.%")
)

KINDS = (
    SETTINGS,
    CONTRACTS,
    INTERACTIONS,
    OPEN_INTERACTIONS,
    CALLS,
    REFUSALS,
    PROGRAMS,
    RESPONSES,
    CONVERSATIONS,
    WEBHOOK_EVENTS,
    EXPORTS,
    ALARMS,
    AUDIT,
)


def pages(
    sessions: SessionFactory,
    kind: RecordKind,
    tenant_id: str,
    user: str,
    *,
    until: datetime | None = None,
    rows: int = PAGE_ROWS,
) -> Iterator[Sequence[Any]]:
    """Yield pages of rows about a user in order, up to the time ``until``."""
    conditions = [kind.about(tenant_id, user)]
    if until is not None and kind.time is not None:
        conditions.append(getattr(kind.model, kind.time) <= until)
    return _pages(sessions, kind.model, conditions, kind.order, rows)


def parts(
    sessions: SessionFactory, model: Any, whole: Any, whole_id: str, *order: str
) -> Iterator[Sequence[Any]]:
    """Yield pages of the rows of ``model`` that name a row in the column ``whole_id``."""
    conditions = [
        model.tenant_id == whole.tenant_id,
        model.app_id == whole.app_id,
        getattr(model, whole_id) == whole.id,
    ]
    return _pages(sessions, model, conditions, order, PAGE_ROWS // 10)


def _pages(
    sessions: SessionFactory,
    model: Any,
    conditions: Sequence[ColumnElement[bool]],
    order: Sequence[str],
    rows: int,
) -> Iterator[Sequence[Any]]:
    columns = [getattr(model, name) for name in order]
    query = select(model).where(*conditions).order_by(*columns).limit(rows)
    after: tuple[Any, ...] | None = None
    while True:
        further = query if after is None else query.where(tuple_(*columns) > after)
        with sessions() as session:
            page = read_only(session).scalars(further).all()
        if page:
            yield page
        if len(page) < rows:
            return
        after = tuple(getattr(page[-1], name) for name in order)
