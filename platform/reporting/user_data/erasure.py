"""Erase one end user: personal data is deleted, usage is kept under a pseudonym.

First the erasure is stored, so that records of running calls and of a replayed journal are written
under the pseudonym (:func:`~fairserve.platform.reporting.user_data.pseudonyms.under_pseudonyms`); then
existing rows are changed, in short transactions. A repeated request finishes an interrupted erasure.

Weakness: a run in progress during its user's erasure is split into two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.orm import Session

from fairserve.platform.db import audit
from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.base import Base, utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.erasures import Erasure, user_hashes
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.rows import table_of
from fairserve.platform.db.upsert import upsert
from fairserve.platform.db.usage_marks import mark_rows
from fairserve.platform.db.webhooks import WebhookEvent
from fairserve.platform.reporting.exports.erasure import forget_user
from fairserve.platform.reporting.usage.renaming import rename_user
from fairserve.platform.reporting.user_data.pseudonyms import Replacement, new_erasure
from fairserve.platform.reporting.user_data.repository import (
    ALARMS,
    AUDIT,
    CALLS,
    CONTRACTS,
    CONVERSATIONS,
    EXPORTS,
    INTERACTIONS,
    OPEN_INTERACTIONS,
    PROGRAMS,
    REFUSALS,
    RESPONSES,
    SETTINGS,
    WEBHOOK_EVENTS,
    RecordKind,
    pages,
)
from fairserve.platform.tenancy.auth import Principal

BATCH_ROWS = 5_000
"""Maximum rows per transaction."""
PROGRAM_ROWS = 100
"""Maximum rows with texts, of programs or responses, per transaction."""

Write = Callable[[Session, Sequence[Any]], None]


def begin(session: Session, hasher: KeyHasher, principal: Principal, user: str) -> Erasure:
    """Store the erasure of a user as of now, with an entry in the audit log. The caller commits.

    Raises IntegrityError for a concurrent erasure, or if there is no such tenant.
    """
    assert principal.tenant_id is not None
    hashes = user_hashes(hasher, user)
    erasure = session.scalars(
        select(Erasure)
        .where(Erasure.tenant_id == principal.tenant_id, Erasure.user_hash.in_(hashes))
        .with_for_update()
    ).first()
    if erasure is None:
        erasure = new_erasure(principal.tenant_id, hashes[0], utc_now())
        session.add(erasure)
    erasure.user_hash = hashes[0]
    erasure.erased_at = utc_now()
    audit.record(session, principal, "user.erase", erasure.pseudonym, tenant_id=principal.tenant_id)
    session.flush()
    return erasure


class Rewriting:
    """Rewrites or deletes the rows of one erased user."""

    def __init__(self, sessions: SessionFactory, erasure: Erasure, user: str) -> None:
        self._sessions = sessions
        self._tenant_id = erasure.tenant_id
        self._user = user
        self._until = erasure.erased_at
        self._new = Replacement(erasure.pseudonym, erasure.id_key)

    def delete_settings(self) -> dict[str, int]:
        """Delete the operators' settings for the user; return the number of rows by kind."""
        return {
            SETTINGS.name: self._in_batches(SETTINGS, _delete),
            CONTRACTS.name: self._in_batches(CONTRACTS, _delete),
        }

    def rewrite(self) -> dict[str, int]:
        """Rewrite all other rows; return their number by kind."""
        counts = {
            AUDIT.name: self._in_batches(AUDIT, self._audit),
            PROGRAMS.name: self._in_batches(PROGRAMS, _delete, PROGRAM_ROWS),
            CONVERSATIONS.name: self._in_batches(CONVERSATIONS, _delete, PROGRAM_ROWS),
            RESPONSES.name: self._in_batches(RESPONSES, _delete, PROGRAM_ROWS),
            OPEN_INTERACTIONS.name: self._in_batches(OPEN_INTERACTIONS, _delete),
            REFUSALS.name: self._in_batches(REFUSALS, self._refusals),
            INTERACTIONS.name: self._in_batches(INTERACTIONS, self._interactions),
            CALLS.name: self._in_batches(CALLS, self._calls),
            WEBHOOK_EVENTS.name: self._in_batches(WEBHOOK_EVENTS, self._webhook_events),
            ALARMS.name: self._in_batches(ALARMS, self._alarms),
        }
        rename_user(self._sessions, self._tenant_id, self._user, self._new.pseudonym)
        counts[EXPORTS.name] = forget_user(self._sessions, self._tenant_id, self._user)
        return counts

    def _in_batches(self, kind: RecordKind, write: Write, rows: int = BATCH_ROWS) -> int:
        count = 0
        for page in pages(
            self._sessions, kind, self._tenant_id, self._user, until=self._until, rows=rows
        ):
            with self._sessions.begin() as session:
                write(session, page)
            count += len(page)
        return count

    def _audit(self, session: Session, page: Sequence[AuditEntry]) -> None:
        changes = [
            {
                "id": row.id,
                "target": self._new.pseudonym,
                "before": None if _names(row.before, self._user) else row.before,
                "after": None if _names(row.after, self._user) else row.after,
            }
            for row in page
        ]
        _update(session, AuditEntry, changes)

    def _refusals(self, session: Session, page: Sequence[ThrottlingEvent]) -> None:
        changes = [
            {
                "call_id": row.call_id,
                "user_id": self._new.pseudonym,
                "interaction_id": self._new.run(row.app_id, row.interaction_id),
            }
            for row in page
        ]
        _update(session, ThrottlingEvent, changes)
        mark_rows(session, map(_plain, page), "at")

    def _interactions(self, session: Session, page: Sequence[LedgerInteraction]) -> None:
        # A replayed journal may have written the new rows already.
        changed = [
            _plain(row) | {"id": self._new.run(row.app_id, row.id), "user_id": self._new.pseudonym}
            for row in page
        ]
        upsert(session, LedgerInteraction, changed)
        self._cancellations(session, page)
        _delete(session, page)
        mark_rows(session, changed, "ended_at")

    def _cancellations(self, session: Session, page: Sequence[LedgerInteraction]) -> None:
        """Replace the ids of runs in the entries of the audit log about their cancellation."""
        targets = {
            f"{row.app_id}/{row.id}": f"{row.app_id}/{self._new.run(row.app_id, row.id)}"
            for row in page
        }
        entries = session.scalars(
            select(AuditEntry).where(
                AuditEntry.tenant_id == self._tenant_id,
                AuditEntry.action == "interaction.cancel",
                AuditEntry.target.in_(targets),
            )
        )
        for entry in entries:
            entry.target = targets[entry.target]

    def _calls(self, session: Session, page: Sequence[LedgerCall]) -> None:
        changes = []
        for row in page:
            texts = self._new.texts(
                row.app_id, row.interaction_id, row.call_id, row.name, row.parents
            )
            changes.append(
                {"call_id": row.call_id, "user_id": self._new.pseudonym}
                | texts
                | {"parents": list(texts["parents"])}
            )
        _update(session, LedgerCall, changes)
        mark_rows(session, map(_plain, page), "accepted_at")

    def _webhook_events(self, session: Session, page: Sequence[WebhookEvent]) -> None:
        changes = [
            {
                "id": row.id,
                "user_id": self._new.pseudonym,
                "payload": row.payload | {"data": self._new.event_data(row.payload["data"])},
            }
            for row in page
        ]
        _update(session, WebhookEvent, changes)

    def _alarms(self, session: Session, page: Sequence[AlarmRow]) -> None:
        new = [{"id": row.id, "user_id": self._new.pseudonym} for row in page]
        _update(session, AlarmRow, new)


def _update(session: Session, model: type[Base], changes: Sequence[Mapping[str, Any]]) -> None:
    """Update rows by their single-column key; skip rows that no longer exist."""
    table = table_of(model)
    (key,) = table.primary_key
    names = [name for name in changes[0] if name != key.name]
    statement = (
        update(table)
        .where(key == bindparam(f"of_{key.name}"))
        .values({name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names})
    )
    session.connection().execute(
        statement,
        [
            {f"of_{key.name}": change[key.name]} | {f"new_{name}": change[name] for name in names}
            for change in changes
        ],
    )


def _delete(session: Session, page: Sequence[Any]) -> None:
    table = table_of(type(page[0]))
    key = list(table.primary_key)
    keys = key_parameter([getattr(row, column.key) for column in key] for row in page)
    session.execute(delete(table).where(in_keys(key, session.get_bind().dialect.name)), keys)


def _plain(row: Base) -> dict[str, Any]:
    return {column.name: getattr(row, column.key) for column in row.__table__.columns}


def _names(value: object, user: str) -> bool:
    """Return whether a JSON value contains the user's id."""
    if isinstance(value, Mapping):
        return any(_names(part, user) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(_names(part, user) for part in value)
    return isinstance(value, str) and user in value
