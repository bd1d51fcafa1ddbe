"""Changes of the fleet through the API: checked against all sources, stored and audited."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.fleet import FleetAlias, FleetDrain, FleetWorker
from fairserve.platform.db.rows import count
from fairserve.platform.fleet import repository
from fairserve.platform.fleet.fleet import PLACES, Desired, DesiredWorker, FleetPart, clashes
from fairserve.platform.fleet.schemas import (
    MAX_ALIASES,
    MAX_DRAINS,
    MAX_WORKERS,
    AliasPut,
    WorkerJoin,
    WorkerPut,
    spec_of,
)
from fairserve.platform.tenancy.auth import Principal

_AUDITED = (
    "url",
    "kind",
    "model",
    "tokenizer",
    "kv_events",
    "kv_replay",
    "kv_tokens",
    "concurrency",
    "api_key_env",
    "managed_by",
)


class FleetChanges:
    """Changes within one request. The caller commits, then reloads the running fleet."""

    def __init__(
        self, session: Session, principal: Principal, desired: Desired, served: Collection[str]
    ) -> None:
        """``desired`` is the fleet of all sources, ``served`` the names of the served models."""
        self._session = session
        self._principal = principal
        self._desired = desired
        self._served = served

    # --- workers ----------------------------------------------------------------------------------

    def join(self, body: WorkerJoin) -> FleetWorker:
        """Store a new worker. Raises ConflictError, which names the conflict.

        Deletes a leftover drain of an earlier worker with this id.
        """
        if count(self._session, select(FleetWorker)) >= MAX_WORKERS:
            raise ConflictError(f"the limit of {MAX_WORKERS} workers is reached; remove one first")
        self._check(FleetPart(workers=(spec_of(body),)), self._desired)
        row = FleetWorker(**body.model_dump(), created_at=utc_now())
        self._session.add(row)
        self._delete_drain(row.id)
        self._session.flush()
        self._record("worker.join", row.id, None, _plain(row))
        return row

    def change(self, worker_id: str, body: WorkerPut) -> tuple[DesiredWorker, bool]:
        """Change a worker's values. Raises ConflictError, which names the conflict.

        Returns the worker, and whether its specification differs, so that it drains and joins again.
        """
        row = self._worker(worker_id)
        before, was = _plain(row), spec_of(row)
        for name, value in body.model_dump().items():
            if name != "managed_by" or name in body.model_fields_set:
                setattr(row, name, value)
        others = {name: w for name, w in self._desired.workers.items() if name != worker_id}
        self._check(FleetPart(workers=(spec_of(row),)), replace(self._desired, workers=others))
        self._session.flush()
        self._record("worker.change", worker_id, before, _plain(row))
        return self._any_worker(worker_id), spec_of(row) != was

    def drain(self, worker_id: str) -> tuple[DesiredWorker, bool]:
        """Drain a worker of any source: it gets no new calls, also after a restart.

        Returns the worker with its drain, and whether the drain is new.
        """
        worker = self._any_worker(worker_id)
        drain = self._session.get(FleetDrain, worker_id)
        changed = drain is None
        if drain is None:
            if count(self._session, select(FleetDrain)) >= MAX_DRAINS:
                repository.forget_drains(self._session, but=self._desired.workers)
            by, at = self._principal.actor, utc_now()
            drain = FleetDrain(worker_id=worker_id, drained_by=by, drained_at=at)
            self._session.add(drain)
            self._notify_drained(worker, drained=True)
        return replace(worker, drain=repository.note_of(drain)), changed

    def undrain(self, worker_id: str) -> tuple[DesiredWorker, bool]:
        """Undrain a worker. Returns it, and whether it was drained."""
        worker = self._any_worker(worker_id)
        changed = self._delete_drain(worker_id)
        if changed:
            self._notify_drained(worker, drained=False)
        return replace(worker, drain=None), changed

    def _notify_drained(self, worker: DesiredWorker, *, drained: bool) -> None:
        worker_id, source = worker.spec.worker_id, worker.source
        self._session.flush()
        before, after = ({"source": source, "drained": each} for each in (not drained, drained))
        self._record("worker.drain" if drained else "worker.undrain", worker_id, before, after)

    def _delete_drain(self, worker_id: str) -> bool:
        drain = self._session.get(FleetDrain, worker_id)
        if drain is not None:
            self._session.delete(drain)
        return drain is not None

    def remove(self, worker_id: str) -> None:
        """Delete a worker and its drain."""
        row = self._worker(worker_id)
        self._record("worker.remove", worker_id, _plain(row), None)
        self._delete_drain(worker_id)
        self._session.delete(row)
        self._session.flush()

    def _worker(self, worker_id: str) -> FleetWorker:
        row = self._session.get(FleetWorker, worker_id)
        if row is not None:
            return row
        other = self._desired.workers.get(worker_id)
        if other is not None and other.source != "api":
            raise _elsewhere(f"worker {worker_id!r}", other.source)
        raise _no_worker(worker_id)

    def _any_worker(self, worker_id: str) -> DesiredWorker:
        row = self._session.get(FleetWorker, worker_id)
        if row is not None:
            drain = self._session.get(FleetDrain, worker_id)
            note = None if drain is None else repository.note_of(drain)
            return DesiredWorker(spec_of(row), "api", note, repository.stored_values(row))
        worker = self._desired.workers.get(worker_id)
        if worker is None or worker.source == "api":  # an API worker without a row was removed
            raise _no_worker(worker_id)
        return worker

    # --- aliases ----------------------------------------------------------------------------------

    def put_alias(self, name: str, body: AliasPut) -> FleetAlias:
        """Store or change an alias. Raises ConflictError, which names the conflict."""
        row = self._session.get(FleetAlias, name)
        others = {n: a for n, a in self._desired.aliases.items() if (n, a.source) != (name, "api")}
        others_only = Desired(self._desired.workers, others, self._desired.tokenizers)
        self._check(FleetPart(aliases={name: body.target}), others_only)
        before = None if row is None else _alias(row)
        if row is None:
            if count(self._session, select(FleetAlias)) >= MAX_ALIASES:
                raise ConflictError(
                    f"the limit of {MAX_ALIASES} aliases is reached; remove one first"
                )
            row = FleetAlias(name=name)
            self._session.add(row)
        row.targets, row.updated_at = body.target, utc_now()
        if "managed_by" in body.model_fields_set:
            row.managed_by = body.managed_by
        self._session.flush()
        self._record("alias.put", name, before, _alias(row))
        return row

    def remove_alias(self, name: str) -> None:
        """Delete an alias."""
        row = self._session.get(FleetAlias, name)
        if row is None:
            other = self._desired.aliases.get(name)
            if other is not None and other.source != "api":
                raise _elsewhere(f"alias {name!r}", other.source)
            raise NotFoundError(f"there is no alias {name!r}", param="name")
        self._record("alias.remove", name, _alias(row), None)
        self._session.delete(row)
        self._session.flush()

    # --- both -------------------------------------------------------------------------------------

    def _check(self, part: FleetPart, others: Desired) -> None:
        problems = clashes(part, others, self._served)
        if problems:
            raise ConflictError("; ".join(problems[:3]))

    def _record(
        self,
        action: str,
        target: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        audit.record(self._session, self._principal, action, target, before=before, after=after)


def _elsewhere(what: str, source: str) -> ConflictError:
    return ConflictError(f"{what} comes from {PLACES[source]}; change it there")


def _no_worker(worker_id: str) -> NotFoundError:
    return NotFoundError(f"there is no worker {worker_id!r}", param="worker_id")


def _plain(row: FleetWorker) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _AUDITED}


def _alias(row: FleetAlias) -> dict[str, Any]:
    return {"targets": row.targets, "managed_by": row.managed_by}
