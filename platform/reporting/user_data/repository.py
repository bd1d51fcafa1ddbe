"""Stored data of one end user of a tenant, by kind, in pages of rows.

Each page is read in its own transaction, from the end of the previous one, so that neither a slow reader
nor a long erasure holds locks. The kinds cover all tables that name users: add new tables here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from fairserve.platform.db.base import Base
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
from fairserve.platform.db.programs import ProgramRow, ProgramStep
from fairserve.platform.db.responses import ConversationItem, StoredConversation, StoredResponse
from fairserve.platform.db.webhooks import WebhookEvent

PAGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class RecordKind:
    """Rows about a user in one table. ``order`` is unique within a tenant; ``time`` is their time."""

    name: str
    model: type[Base]
    about: Callable[[str, str], ColumnElement[bool]]
    order: tuple[InstrumentedAttribute[Any], ...]
    time: InstrumentedAttribute[Any] | None = None


def _about_user(model: Any) -> Callable[[str, str], ColumnElement[bool]]:
    return lambda tenant_id, user: and_(model.tenant_id == tenant_id, model.user_id == user)


def _audited(tenant_id: str, user: str) -> ColumnElement[bool]:
    return and_(
        AuditEntry.tenant_id == tenant_id,
        AuditEntry.target == user,
        AuditEntry.action.like("user.%"),
    )


SETTINGS = RecordKind(
    "settings",
    EndUser,
    lambda tenant_id, user: and_(EndUser.tenant_id == tenant_id, EndUser.external_id == user),
    (EndUser.external_id,),
)
CONTRACTS = RecordKind(
    "contracts",
    Contract,
    lambda tenant_id, user: and_(_about_user(Contract)(tenant_id, user), Contract.scope == "user"),
    (Contract.scope, Contract.app_id),
)
INTERACTIONS = RecordKind(
    "interactions",
    LedgerInteraction,
    _about_user(LedgerInteraction),
    (LedgerInteraction.app_id, LedgerInteraction.id),
    LedgerInteraction.opened_at,
)
OPEN_INTERACTIONS = RecordKind(
    "open_interactions",
    OpenInteraction,
    _about_user(OpenInteraction),
    (OpenInteraction.app_id, OpenInteraction.id),
    OpenInteraction.opened_at,
)
CALLS = RecordKind(
    "calls",
    LedgerCall,
    _about_user(LedgerCall),
    (LedgerCall.accepted_at, LedgerCall.call_id),
    LedgerCall.accepted_at,
)
REFUSALS = RecordKind(
    "refusals",
    ThrottlingEvent,
    _about_user(ThrottlingEvent),
    (ThrottlingEvent.at, ThrottlingEvent.call_id),
    ThrottlingEvent.at,
)
PROGRAMS = RecordKind(
    "programs",
    ProgramRow,
    _about_user(ProgramRow),
    (ProgramRow.app_id, ProgramRow.id),
    ProgramRow.created_at,
)
RESPONSES = RecordKind(
    "responses",
    StoredResponse,
    _about_user(StoredResponse),
    (StoredResponse.app_id, StoredResponse.id),
    StoredResponse.created_at,
)
CONVERSATIONS = RecordKind(
    "conversations",
    StoredConversation,
    _about_user(StoredConversation),
    (StoredConversation.app_id, StoredConversation.id),
    StoredConversation.created_at,
)
WEBHOOK_EVENTS = RecordKind(
    "webhook_events",
    WebhookEvent,
    _about_user(WebhookEvent),
    (WebhookEvent.id,),
    WebhookEvent.origin_at,
)
EXPORTS = RecordKind(
    "exports",
    ReportExport,
    _about_user(ReportExport),
    (ReportExport.created_at, ReportExport.id),
    ReportExport.created_at,
)
AUDIT = RecordKind("audit", AuditEntry, _audited, (AuditEntry.at, AuditEntry.id))

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
        conditions.append(kind.time <= until)
    return _pages(sessions, kind.model, conditions, kind.order, rows)


def steps(sessions: SessionFactory, program: ProgramRow) -> Iterator[Sequence[Any]]:
    """Yield pages of a program's steps, with their outputs."""
    conditions = [
        ProgramStep.tenant_id == program.tenant_id,
        ProgramStep.app_id == program.app_id,
        ProgramStep.program_id == program.id,
    ]
    order = (ProgramStep.kind, ProgramStep.name)
    return _pages(sessions, ProgramStep, conditions, order, PAGE_ROWS // 10)


def conversation_items(
    sessions: SessionFactory, conversation: StoredConversation
) -> Iterator[Sequence[Any]]:
    """Yield pages of a conversation's items."""
    conditions = [
        ConversationItem.tenant_id == conversation.tenant_id,
        ConversationItem.app_id == conversation.app_id,
        ConversationItem.conversation_id == conversation.id,
    ]
    return _pages(
        sessions, ConversationItem, conditions, (ConversationItem.position,), PAGE_ROWS // 10
    )


def _pages(
    sessions: SessionFactory,
    model: type[Base],
    conditions: Sequence[ColumnElement[bool]],
    order: tuple[InstrumentedAttribute[Any], ...],
    rows: int,
) -> Iterator[Sequence[Any]]:
    query = select(model).where(*conditions).order_by(*order).limit(rows)
    after: tuple[Any, ...] | None = None
    while True:
        further = query if after is None else query.where(tuple_(*order) > after)
        with sessions() as session:
            page = read_only(session).scalars(further).all()
        if page:
            yield page
        if len(page) < rows:
            return
        after = tuple(getattr(page[-1], column.key) for column in order)
