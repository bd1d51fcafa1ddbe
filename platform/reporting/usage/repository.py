"""The ledger: stores each call of the journal exactly once, and deletes rows after the retention.

Writes are idempotent, so the journal may be replayed from any point. Texts that clients choose are
truncated to their columns, because a row that the database rejects would block the journal. The caller
commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Executable, Table, delete, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.control.messages import CallRecord, InteractionRecord, OpenInteractionRecord
from fairserve.platform.db.base import utc_time
from fairserve.platform.db.erasures import Erasure
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.ledger import (
    LedgerCall,
    LedgerInteraction,
    OpenInteraction,
    ThrottlingEvent,
)
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.upsert import fitting, upsert
from fairserve.platform.reporting.usage.marks import mark_ends_until_now, mark_rows
from fairserve.scheduling.rejection_context import RejectionContext

REFUSAL_INPUTS = (
    *(field.name for field in fields(RejectionContext)),
    "budget_limit",
    "budget_spent",
    "budget_held",
    "call_cost",
)
"""Columns of the inputs of a rejection, by key of ``refusal_inputs``."""


def upsert_calls(session: Session, records: Sequence[CallRecord]) -> None:
    """Write calls, and the throttling event of each rejected one. The last record of an id wins."""
    calls = [_call(record) for record in records]
    upsert(session, LedgerCall, calls)
    mark_rows(session, calls, "accepted_at")  # a rejection has the time of its call
    refused = [_event(record) for record in records if record.outcome == "refused"]
    upsert(session, ThrottlingEvent, refused)


def upsert_interactions(session: Session, records: Sequence[InteractionRecord]) -> None:
    """Write ended interactions. The last record of an app and id wins."""
    table = LedgerInteraction.__table__
    assert isinstance(table, Table)
    runs = [fitting(table, _interaction(record)) for record in records]
    mark_ends_until_now(session, runs)
    upsert(session, LedgerInteraction, runs)
    mark_rows(session, runs, "ended_at")


def save_open_interactions(
    session: Session,
    ended: Sequence[InteractionRecord],
    opened: Sequence[OpenInteractionRecord],
) -> None:
    """Write the open interactions, and delete those that have ended."""
    table = OpenInteraction.__table__
    assert isinstance(table, Table)
    if ended:
        over = (
            fitting(table, {"tenant_id": run.tenant, "app_id": run.app, "id": run.interaction_id})
            for run in ended
        )
        keys = key_parameter(tuple(each.values()) for each in over)
        session.connection().execute(_deleting(table, session.get_bind().dialect.name), keys)
    upsert(session, OpenInteraction, map(_open_interaction, opened))


@cache
def _deleting(table: Table, dialect: str) -> Executable:
    return delete(table).where(in_keys(list(table.primary_key), dialect))


def delete_before(session: Session, time: datetime, *, max_rows: int = 10_000) -> int:
    """Delete rows older than ``time``: calls, rejections, interactions, audit, erasures, ended keys.

    Deletes at most ``max_rows`` of each, to keep the transaction short, and returns the number. Call it
    again in a new transaction until that is 0.
    """
    ended_keys = or_(ApiKey.revoked_at < time, ApiKey.expires_at < time)
    old = (
        (LedgerCall.call_id, LedgerCall.accepted_at < time),
        (ThrottlingEvent.call_id, ThrottlingEvent.at < time),
        (AuditEntry.id, AuditEntry.at < time),
        (Erasure.pseudonym, Erasure.erased_at < time),
        (ApiKey.id, (ApiKey.scope != "admin") & ended_keys),
    )
    deleted = sum(_delete(session, key, condition, max_rows) for key, condition in old)
    keys = session.execute(
        select(LedgerInteraction.tenant_id, LedgerInteraction.app_id, LedgerInteraction.id)
        .where(LedgerInteraction.ended_at < time)
        .limit(max_rows)
    ).all()
    for tenant_id, app_id, interaction_id in keys:
        session.execute(
            delete(LedgerInteraction).where(
                LedgerInteraction.tenant_id == tenant_id,
                LedgerInteraction.app_id == app_id,
                LedgerInteraction.id == interaction_id,
            )
        )
    return deleted + len(keys)


def _delete(session: Session, key: InstrumentedAttribute[str], condition: Any, rows: int) -> int:
    ids = select(key).where(condition).limit(rows).scalar_subquery()
    result = session.execute(
        delete(key.class_).where(key.in_(ids)), execution_options={"synchronize_session": False}
    )
    return int(getattr(result, "rowcount", 0))


def _open_interaction(record: OpenInteractionRecord) -> dict[str, Any]:
    return {
        "tenant_id": record.tenant,
        "app_id": record.app,
        "id": record.interaction_id,
        "user_id": record.user,
        "opened_at": utc_time(record.opened_at),
        "sink": record.sink,
        "closing": record.closing,
    }


def _call(record: CallRecord) -> dict[str, Any]:
    return {
        "call_id": record.call_id,
        "tenant_id": record.tenant,
        "app_id": record.app,
        "user_id": record.user,
        "model": record.model,
        "interaction_id": record.interaction_id,
        "stage": record.stage,
        "agent": record.agent,
        "outcome": record.outcome,
        "accepted_at": utc_time(record.accepted_at),
        "ended_at": utc_time(record.ended_at),
        "input_tokens": record.input_tokens,
        "system_tokens": record.system_tokens,
        "cached_tokens": record.cached_tokens,
        "extend_tokens": record.extend_tokens,
        "output_tokens": record.output_tokens,
        "expected_output_tokens": record.expected_output_tokens,
        "service": record.service,
        "queue_delay_s": record.queue_delay_s,
        "ttft_s": record.ttft_s,
        "duration_s": record.duration_s,
        "worker": record.worker,
        "served_model": record.served_model or None,
        "name": record.name or None,
        "parents": list(record.parents),
        "wasted": record.wasted,
        "charged": record.charged,
        "estimated": record.estimated,
        "cost": record.cost,
        "price_id": record.price_id or None,
        "error": record.error,
        "shared_by": record.shared_by,
    }


def _event(record: CallRecord) -> dict[str, Any]:
    inputs = record.refusal_inputs or {}
    return {
        "call_id": record.call_id,
        "at": utc_time(record.accepted_at),
        "tenant_id": record.tenant,
        "app_id": record.app,
        "user_id": record.user,
        "interaction_id": record.interaction_id,
        "reason": record.refusal_reason,
        "scope": record.refusal_scope,
        "limit_count": record.refusal_limit,
        "count": record.refusal_count,
        "window_s": record.refusal_window_s,
        "retry_after_s": record.refusal_retry_after_s,
        "mid_run": record.mid_run,
        "shared_by": record.shared_by,
        **{name: inputs.get(name) for name in REFUSAL_INPUTS},
    }


def _interaction(record: InteractionRecord) -> dict[str, Any]:
    return {
        "tenant_id": record.tenant,
        "app_id": record.app,
        "id": record.row_id or record.interaction_id,
        "user_id": record.user,
        "state": record.state,
        "opened_at": utc_time(record.opened_at),
        "ended_at": utc_time(record.ended_at),
        "calls": record.calls,
        "tokens": record.tokens,
        "wasted_tokens": record.wasted_tokens,
        "waste_cause": record.waste_cause,
        "shared_by": record.shared_by,
    }
