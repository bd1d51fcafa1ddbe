"""Changing the fleet through the API: checked against all sources, stored, audited."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy.orm import Session

from fairserve.platform.auth import Principal
from fairserve.platform.cluster import repository
from fairserve.platform.cluster.fleet import PLACES, Desired, FleetPart, clashes
from fairserve.platform.cluster.schemas import MAX_ALIASES, MAX_WORKERS, AliasPut, WorkerJoin
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.fleet import FleetAlias, FleetWorker
from fairserve.platform.errors import ConflictError, NotFoundError

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
    "drained",
)


class FleetChanges:
    """Changes within one request. The caller commits, and then has the running fleet load them."""

    def __init__(
        self, session: Session, principal: Principal, desired: Desired, served: Collection[str]
    ) -> None:
        """``desired`` is the fleet of all sources, ``served`` the names of models served now."""
        self._session = session
        self._principal = principal
        self._desired = desired
        self._served = served

    # --- workers ----------------------------------------------------------------------------------

    def join(self, body: WorkerJoin) -> FleetWorker:
        """Store a new worker. Raises ConflictError naming what it clashes with."""
        if repository.count_workers(self._session) >= MAX_WORKERS:
            raise ConflictError(f"{MAX_WORKERS} workers have joined; remove one first")
        self._check(FleetPart(workers=(body.spec(),)), self._desired)
        row = FleetWorker(**body.model_dump(), drained=False, created_at=utc_now())
        self._session.add(row)
        self._session.flush()
        self._record("worker.join", row.id, None, _plain(row))
        return row

    def drain(self, worker_id: str) -> FleetWorker:
        """Have a worker finish its calls and take no more, also after a restart."""
        row = self._worker(worker_id)
        before = _plain(row)
        if not row.drained:
            row.drained = True
            self._session.flush()
            self._record("worker.drain", worker_id, before, _plain(row))
        return row

    def remove(self, worker_id: str) -> None:
        """Forget a worker."""
        row = self._worker(worker_id)
        self._record("worker.remove", worker_id, _plain(row), None)
        self._session.delete(row)
        self._session.flush()

    def _worker(self, worker_id: str) -> FleetWorker:
        row = self._session.get(FleetWorker, worker_id)
        if row is not None:
            return row
        other = self._desired.workers.get(worker_id)
        if other is not None and other.source != "api":
            raise _elsewhere(f"worker {worker_id!r}", other.source)
        raise NotFoundError(f"there is no worker {worker_id!r}", param="worker_id")

    # --- aliases ----------------------------------------------------------------------------------

    def put_alias(self, name: str, body: AliasPut) -> FleetAlias:
        """Store an alias, or change it. Raises ConflictError naming what it clashes with."""
        row = self._session.get(FleetAlias, name)
        others = {n: a for n, a in self._desired.aliases.items() if (n, a.source) != (name, "api")}
        others_only = Desired(self._desired.workers, others, self._desired.tokenizers)
        self._check(FleetPart(aliases={name: body.target}), others_only)
        before = None if row is None else {"targets": row.targets}
        if row is None:
            if repository.count_aliases(self._session) >= MAX_ALIASES:
                raise ConflictError(f"there are {MAX_ALIASES} aliases; remove one first")
            row = FleetAlias(name=name)
            self._session.add(row)
        row.targets, row.updated_at = body.target, utc_now()
        self._session.flush()
        self._record("alias.put", name, before, {"targets": row.targets})
        return row

    def remove_alias(self, name: str) -> None:
        """Forget an alias."""
        row = self._session.get(FleetAlias, name)
        if row is None:
            other = self._desired.aliases.get(name)
            if other is not None and other.source != "api":
                raise _elsewhere(f"alias {name!r}", other.source)
            raise NotFoundError(f"there is no alias {name!r}", param="name")
        self._record("alias.remove", name, {"targets": row.targets}, None)
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
    return ConflictError(f"{what} is one of {PLACES[source]}; change it there")


def _plain(row: FleetWorker) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _AUDITED}
