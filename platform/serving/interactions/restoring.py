"""Restore the open interactions after a restart, with their graphs, from the database.

A run consists of its row in ``open_interactions`` and of its calls in the ledger. Both are written from
the journal, so that the end of a process loses neither. Calls that were in progress have failed by then.
Ages count until the server before was last known to serve, so a run does not idle while no server could
take its calls.

Cost: one pass over the open runs and their calls, in pages. Weakness: runs that had idled to their end
and could have been reopened are not restored; a late call of theirs begins a new run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, and_, delete, func, select, tuple_

from fairserve.interactions.tracking.identity import core_call_id, core_run_id
from fairserve.interactions.tracking.run import RestoredCall, RestoredRun
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.ledger import LedgerCall, OpenInteraction

logger = logging.getLogger(__name__)

PAGE_ROWS = 500
"""Runs of a page: the number of keys that one statement may name."""
_KEY = (OpenInteraction.tenant_id, OpenInteraction.app_id, OpenInteraction.id)
_CALL = (
    LedgerCall.tenant_id,
    LedgerCall.app_id,
    LedgerCall.interaction_id,
    LedgerCall.call_id,
    LedgerCall.name,
    LedgerCall.parents,
    LedgerCall.outcome,
    LedgerCall.ended_at,
    (LedgerCall.input_tokens + LedgerCall.system_tokens + LedgerCall.output_tokens).label("tokens"),
)

RunKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """An open run from the database."""

    run: RestoredRun
    opened_at: float
    key: RunKey


async def restore_interactions(
    sessions: SessionFactory, control: ControlService, alive_at: float | None = None
) -> None:
    """Restore all open runs in control. Raises SQLAlchemyError.

    ``alive_at`` is when the server before was last known to serve, as a UTC epoch second. Runs that
    control does not take are logged, and forgotten.
    """
    found = stored_runs(sessions, alive_at)
    restored, rejected = 0, list[RunKey]()
    while page := await asyncio.to_thread(next, found, None):
        for stored in page:
            try:
                await control.restore_interaction(stored.run, stored.opened_at)
                restored += 1
            except FairServeError as error:
                logger.warning("interaction %s is not restored: %s", stored.key[2], error)
                rejected.append(stored.key)
    await asyncio.to_thread(_forget, sessions, rejected)
    if restored:
        logger.warning("%d interactions were open when the server stopped: restored", restored)


def stored_runs(
    sessions: SessionFactory, alive_at: float | None = None
) -> Iterator[Sequence[StoredRun]]:
    """Yield pages of all open runs, each page read in a transaction of its own."""
    after: RunKey | None = None
    with sessions() as session:
        last_at = read_only(session).scalar(select(func.max(LedgerCall.accepted_at)))
    if alive_at is not None:
        served_until = datetime.fromtimestamp(alive_at, UTC)
        last_at = served_until if last_at is None else max(last_at, served_until)
    while True:
        query = select(OpenInteraction).order_by(*_KEY).limit(PAGE_ROWS)
        if after is not None:
            query = query.where(tuple_(*_KEY) > after)
        with sessions() as session:
            runs = read_only(session).scalars(query).all()
            keys = [(run.tenant_id, run.app_id, run.id) for run in runs]
            calls: dict[RunKey, list[Row[Any]]] = defaultdict(list)
            for call in session.execute(_calls(keys)) if keys else ():
                calls[call.tenant_id, call.app_id, call.interaction_id].append(call)
        if runs:
            yield [_stored(run, calls[key], last_at) for run, key in zip(runs, keys, strict=True)]
        if len(runs) < PAGE_ROWS:
            return
        after = keys[-1]


def _calls(keys: Sequence[RunKey]) -> Any:
    """Return the ledger's calls of these runs since each was opened, in the order of acceptance."""
    belongs = and_(
        LedgerCall.interaction_id == OpenInteraction.id,
        # Not as plain columns: SQLite would take their index and read all the tenant's calls.
        LedgerCall.tenant_id.concat("") == OpenInteraction.tenant_id,
        LedgerCall.app_id.concat("") == OpenInteraction.app_id,
        LedgerCall.accepted_at >= OpenInteraction.opened_at,
    )
    return (
        select(*_CALL)
        .join(OpenInteraction, belongs)
        .where(tuple_(*_KEY).in_(keys))
        .order_by(LedgerCall.accepted_at, LedgerCall.call_id)
    )


def _stored(row: OpenInteraction, calls: Sequence[Row[Any]], last_at: datetime | None) -> StoredRun:
    """Return a run with its ages at ``last_at``, or at its own last event if that is later."""
    times = [row.opened_at, *(call.ended_at for call in calls)]
    until = max(times if last_at is None else [*times, last_at])

    def age_s(at: datetime) -> float:
        return float((until - at).total_seconds())

    core_id = core_run_id(row.app_id, row.id)
    accepted = [call for call in calls if call.outcome != "refused"]
    refused = [age_s(call.ended_at) for call in calls if call.outcome == "refused"]
    run = RestoredRun(
        core_id,
        (row.tenant_id, row.app_id, row.user_id),
        tuple(
            RestoredCall(
                core_call_id(core_id, call.name or call.call_id),
                tuple(core_call_id(core_id, parent) for parent in call.parents or ()),
                call.tokens,
                call.outcome,
                age_s(call.ended_at),
            )
            for call in accepted
        ),
        sink=None if row.sink is None else core_call_id(core_id, row.sink),
        closing=row.closing,
        opened_age_s=age_s(row.opened_at),
        refused_age_s=min(refused, default=None),
    )
    return StoredRun(run, row.opened_at.timestamp(), (row.tenant_id, row.app_id, row.id))


def _forget(sessions: SessionFactory, keys: Sequence[RunKey]) -> None:
    for start in range(0, len(keys), PAGE_ROWS):
        with sessions.begin() as session:
            some = keys[start : start + PAGE_ROWS]
            session.execute(delete(OpenInteraction).where(tuple_(*_KEY).in_(some)))
