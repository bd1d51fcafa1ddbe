"""Change the running fleet: store the change and load the fleet after the commit."""

from __future__ import annotations

from sqlalchemy.orm import Session

from fairserve.platform.db.engine import read_only
from fairserve.platform.db.session import after_commit
from fairserve.platform.fleet import repository
from fairserve.platform.fleet.fleet import DesiredWorker, StoredFleet
from fairserve.platform.fleet.fleet_view import drain_note, spec_of, state_of, worker_out
from fairserve.platform.fleet.parts import FleetParts
from fairserve.platform.fleet.schemas import WorkerOut
from fairserve.platform.fleet.service import FleetChanges
from fairserve.platform.tenancy.auth import Principal


def changes_of(parts: FleetParts, session: Session, principal: Principal) -> FleetChanges:
    """Return the fleet changes of one request, in its session."""
    return FleetChanges(session, principal, parts.running.desired, parts.models.names())


def apply_after_commit(parts: FleetParts, session: Session, drop: str = "") -> None:
    """Load the stored fleet after the commit; ``drop`` is a worker to remove without draining."""

    def apply() -> None:
        def load() -> StoredFleet:
            with parts.sessions() as reading:
                return repository.load_stored(read_only(reading))

        parts.running.reload(load, drop)

    after_commit(session, apply)


def drain_worker(
    parts: FleetParts, session: Session, changes: FleetChanges, worker_id: str
) -> WorkerOut:
    """Drain a worker of any source: it finishes its calls and gets no new ones."""
    worker, changed = changes.drain(worker_id)
    apply_after_commit(parts, session)
    return _changed_out(parts, worker, "draining" if changed else "")


def undrain_worker(
    parts: FleetParts, session: Session, changes: FleetChanges, worker_id: str
) -> WorkerOut:
    """Resume calls to a drained worker once it responds."""
    worker, changed = changes.undrain(worker_id)
    apply_after_commit(parts, session)
    return _changed_out(parts, worker, "joining" if changed else "")


def _changed_out(parts: FleetParts, worker: DesiredWorker, new_state: str) -> WorkerOut:
    """Return the view of a worker that changes to ``new_state``; empty if its state is unchanged."""
    worker_id = worker.spec.worker_id
    return worker_out(
        spec_of(parts.running, worker),
        worker.source,
        new_state or state_of(parts.running, parts.pool, worker_id),
        drain=worker.drain,
        note=drain_note(parts.models, worker_id) if worker.drain is not None else None,
    )
