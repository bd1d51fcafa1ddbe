"""Change the running fleet: store the change and load the fleet after the commit."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from fairserve.platform.db.engine import read_only
from fairserve.platform.db.session import after_commit
from fairserve.platform.fleet import repository
from fairserve.platform.fleet.fleet import DesiredAlias, DesiredWorker, StoredFleet
from fairserve.platform.fleet.fleet_view import alias_out, drain_note, spec_of, state_of, worker_out
from fairserve.platform.fleet.parts import FleetParts
from fairserve.platform.fleet.schemas import AliasOut, AliasPut, WorkerJoin, WorkerOut, WorkerPut
from fairserve.platform.fleet.schemas import spec_of as stored_spec
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


def join_worker(
    parts: FleetParts, session: Session, changes: FleetChanges, body: WorkerJoin
) -> WorkerOut:
    """Add a worker. It serves once it responds and reports the model."""
    row = changes.join(body)
    apply_after_commit(parts, session)
    stored = repository.stored_values(row)
    return worker_out(DesiredWorker(stored_spec(row), "api", stored=stored), "joining")


def change_worker(
    parts: FleetParts, session: Session, changes: FleetChanges, worker_id: str, body: WorkerPut
) -> WorkerOut:
    """Change a worker: if it differs it finishes its calls, and then joins again."""
    worker, differs = changes.change(worker_id, body)
    apply_after_commit(parts, session)
    return _changed_out(parts, worker, "draining" if differs and not worker.drained else "")


def remove_worker(
    parts: FleetParts, session: Session, changes: FleetChanges, worker_id: str, *, force: bool
) -> None:
    """Drain a worker, then remove it; with ``force`` at once, and its calls are cut off."""
    changes.remove(worker_id)
    apply_after_commit(parts, session, drop=worker_id if force else "")


def put_alias(
    parts: FleetParts, session: Session, changes: FleetChanges, name: str, body: AliasPut
) -> AliasOut:
    """Create or change an alias; effective from the next call."""
    row = changes.put_alias(name, body)
    apply_after_commit(parts, session)
    alias = DesiredAlias(body.target, "api", row.managed_by)
    return alias_out(row.name, alias, set(parts.models.ready()))


def remove_alias(parts: FleetParts, session: Session, changes: FleetChanges, name: str) -> None:
    """Remove an alias; calls for it get 404 from now on."""
    changes.remove_alias(name)
    apply_after_commit(parts, session)


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
        replace(worker, spec=spec_of(parts.running, worker)),
        new_state or state_of(parts.running, parts.pool, worker_id),
        note=drain_note(parts.models, worker_id) if worker.drain is not None else None,
    )
