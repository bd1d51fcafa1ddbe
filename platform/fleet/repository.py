"""Queries on the fleet in the database: workers and aliases of the API, and drains."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from fairserve.platform.db.fleet import FleetAlias, FleetDrain, FleetWorker
from fairserve.platform.fleet.fleet import DrainNote, FleetPart, StoredFleet, StoredValues
from fairserve.platform.fleet.schemas import spec_of, targets_of


def load_stored(session: Session) -> StoredFleet:
    """Return the whole stored fleet."""
    drains = session.scalars(select(FleetDrain).order_by(FleetDrain.worker_id))
    return StoredFleet(load_part(session), {row.worker_id: note_of(row) for row in drains})


def load_part(session: Session) -> FleetPart:
    """Return workers, in the order in which they joined, and aliases."""
    rows = session.scalars(select(FleetWorker).order_by(FleetWorker.created_at, FleetWorker.id))
    workers = list(rows)
    aliases = list(session.scalars(select(FleetAlias).order_by(FleetAlias.name)))
    return FleetPart(
        workers=tuple(spec_of(row) for row in workers),
        aliases={row.name: targets_of(row.targets) for row in aliases},
        tokenizers={row.model: row.tokenizer for row in workers if row.model and row.tokenizer},
        managers={row.name: row.managed_by for row in aliases if row.managed_by is not None},
        stored={row.id: stored_values(row) for row in workers},
    )


def stored_values(row: FleetWorker) -> StoredValues:
    """Return what a row has besides the worker's specification."""
    return StoredValues(row.tokenizer, row.managed_by)


def note_of(row: FleetDrain) -> DrainNote:
    """Return the drain of a worker: its author and time."""
    return DrainNote(row.drained_by, row.drained_at)


def forget_drains(session: Session, but: Collection[str]) -> None:
    """Delete the drains of all workers except ``but``."""
    known = session.scalars(select(FleetDrain.worker_id))
    for worker_id in set(known) - set(but):
        session.execute(delete(FleetDrain).where(FleetDrain.worker_id == worker_id))
