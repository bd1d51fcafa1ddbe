"""Change the running fleet: store the change and load the fleet after the commit.

``state`` has the server's services.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from fairserve.platform.db.engine import read_only
from fairserve.platform.db.session import after_commit
from fairserve.platform.fleet import repository
from fairserve.platform.fleet.fleet import DesiredWorker, StoredFleet
from fairserve.platform.fleet.fleet_view import drain_note, spec_of, state_of, worker_out
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.schemas import WorkerOut
from fairserve.platform.fleet.service import FleetChanges
from fairserve.platform.tenancy.auth import Principal


def changes_of(state: Any, session: Session, principal: Principal) -> FleetChanges:
    """Return the fleet changes of one request, in its session."""
    fleet: RunningFleet = state.fleet
    return FleetChanges(session, principal, fleet.desired, state.models.names())


def apply_after_commit(state: Any, session: Session, drop: str = "") -> None:
    """Load the stored fleet after the commit; ``drop`` is a worker to remove without draining."""
    fleet: RunningFleet = state.fleet
    factory = state.session_factory

    def apply() -> None:
        def load() -> StoredFleet:
            with factory() as reading:
                return repository.load_stored(read_only(reading))

        fleet.reload(load, drop)

    after_commit(session, apply)


def drain_worker(state: Any, session: Session, changes: FleetChanges, worker_id: str) -> WorkerOut:
    """Drain a worker of any source: it finishes its calls and gets no new ones."""
    worker, changed = changes.drain(worker_id)
    apply_after_commit(state, session)
    return _changed_out(state, worker, "draining" if changed else "")


def undrain_worker(
    state: Any, session: Session, changes: FleetChanges, worker_id: str
) -> WorkerOut:
    """Resume calls to a drained worker once it responds."""
    worker, changed = changes.undrain(worker_id)
    apply_after_commit(state, session)
    return _changed_out(state, worker, "joining" if changed else "")


def _changed_out(state: Any, worker: DesiredWorker, new_state: str) -> WorkerOut:
    """Return the view of a worker that changes to ``new_state``; empty if its state is unchanged."""
    running: RunningFleet = state.fleet
    worker_id = worker.spec.worker_id
    return worker_out(
        spec_of(running, worker),
        worker.source,
        new_state or state_of(running, state.pool, worker_id),
        drain=worker.drain,
        note=drain_note(state.models, worker_id) if worker.drain is not None else None,
    )
