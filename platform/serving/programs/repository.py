"""Store programs and their steps. Queries for a tenant are scoped to it; the caller commits.

Every write of the process that runs a program is fenced by the number of its claim
(:mod:`fairserve.platform.db.leases`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.interactions.programs.program_state import ProgramState
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.leases import LeasedTable, RowLease
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.programs import ProgramRow, ProgramStep
from fairserve.platform.db.rows import delete_some, has_key
from fairserve.platform.db.upsert import upsert
from fairserve.platform.serving.claims import LEASE

PROGRAMS = LeasedTable(ProgramRow, unfinished=("running",), attempts="attempt", fence=("attempt",))
_KEY = (ProgramRow.tenant_id, ProgramRow.app_id, ProgramRow.id)


class ProgramKey(NamedTuple):
    """Key of a program; ``run_id`` is the client's id of its interaction."""

    tenant: str
    app: str
    run_id: str


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A program as it was saved."""

    key: ProgramKey
    user: str
    declaration: Mapping[str, Any]
    limits: ProgramLimits
    state: ProgramState
    reason: str
    created_at: datetime
    ended_at: datetime | None = None
    attempt: int = 0
    """Number of its last claim; 0: no process runs it yet."""
    steps: Mapping[str, Any] = field(default_factory=lambda: {"nodes": {}, "tasks": {}})
    """Records of nodes and tasks by name."""

    @property
    def run_state(self) -> dict[str, Any]:
        """The state of its run, for ``ProgramRun.restore``."""
        return {"cancelled": self.state == "cancelled", **self.steps}


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """A change of a program, by the process that has claimed it."""

    key: ProgramKey
    attempt: int
    steps: Mapping[str, Any] = field(default_factory=dict)
    """Records that changed, by ``nodes`` and ``tasks`` and by name."""
    state: ProgramState = "running"
    reason: str = ""
    ended_at: datetime | None = None
    """None: it has not ended."""


def insert(session: Session, program: SavedProgram) -> None:
    """Insert a program, claimed if it has an attempt.

    Raises IntegrityError if the id was used, or the app was deleted.
    """
    session.add(
        ProgramRow(
            tenant_id=program.key.tenant,
            app_id=program.key.app,
            id=program.key.run_id,
            user_id=program.user,
            attempt=program.attempt,
            lease_until=program.created_at + LEASE if program.attempt else None,
            declaration=dict(program.declaration),
            limits=asdict(program.limits),
            state=program.state,
            reason=program.reason,
            created_at=program.created_at,
            ended_at=program.ended_at,
        )
    )
    session.flush()


def apply(session: Session, changes: Sequence[ProgramChange]) -> dict[ProgramKey, int]:
    """Write the changes of programs that are still claimed by the attempts that made these.

    Return the attempts of the programs that exist; others were deleted with their app.
    """
    rows = PROGRAMS.locked(session, (change.key for change in changes))
    attempts = {ProgramKey(*key): row[-1] for key, row in rows.items()}
    kept = [change for change in changes if attempts.get(change.key) == change.attempt]
    upsert(session, ProgramStep, (row for change in kept for row in _steps(change)))
    for change in kept:
        if change.ended_at is not None:
            session.execute(
                update(ProgramRow)
                .where(has_key(ProgramRow, change.key))
                .values(state=change.state, reason=change.reason, ended_at=change.ended_at)
            )
    return attempts


def find(sessions: SessionFactory, key: ProgramKey) -> SavedProgram | None:
    """Return a program with all its steps."""
    with sessions() as session:
        row = read_only(session).get(ProgramRow, key)
        if row is None:
            return None
        steps = session.execute(
            select(ProgramStep.kind, ProgramStep.name, ProgramStep.record).where(
                has_key(ProgramStep, key)
            )
        ).all()
    found: dict[str, dict[str, Any]] = {"nodes": {}, "tasks": {}}
    for kind, name, record in steps:
        found[f"{kind}s"][name] = record
    return SavedProgram(
        key=key,
        user=row.user_id,
        declaration=row.declaration,
        limits=ProgramLimits(**row.limits),
        state=row.state,  # type: ignore[arg-type]  # the column holds nothing else
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
        attempt=row.attempt,
        steps=found,
    )


# --- claims -------------------------------------------------------------------------------------------


def lease(key: ProgramKey, attempt: int) -> RowLease[ProgramRow]:
    """Return the lease of an attempt."""
    names = ("tenant_id", "app_id", "id", "attempt")
    return RowLease(PROGRAMS, dict(zip(names, (*key, attempt), strict=True)))


def renew(
    sessions: SessionFactory, leases: Collection[RowLease[ProgramRow]], now: datetime
) -> tuple[set[ProgramKey], dict[ProgramKey, str]]:
    """Renew leases. Return the programs that were lost, and those that are to be cancelled with why."""
    with sessions.begin() as session:
        lost = {ProgramKey(*each.key) for each in PROGRAMS.renew_all(session, leases, now, LEASE)}
        return lost, stops(session, [ProgramKey(*each.key) for each in leases])


def stops(session: Session, keys: Collection[ProgramKey]) -> dict[ProgramKey, str]:
    """Return those of these programs that are to be cancelled, with the reason."""
    ends = (Tenant.deleted_at, Tenant.suspended_at, App.deleted_at, App.suspended_at)
    query = (
        select(*_KEY, ProgramRow.reason, *ends)
        .join(Tenant, Tenant.id == ProgramRow.tenant_id)
        .join(App, App.id == ProgramRow.app_id)
        .where(
            in_keys(_KEY, session.get_bind().dialect.name),
            or_(ProgramRow.reason != "", *(time.is_not(None) for time in ends)),
        )
    )
    rows = session.execute(query, key_parameter(keys)).all()
    return {ProgramKey(*row[:3]): row[3] or _stopped(row[4:]) for row in rows}


def release(sessions: SessionFactory, held: RowLease[ProgramRow]) -> None:
    """End the lease of a program that has not ended: any process may continue it."""
    with sessions.begin() as session:
        held.end(session)


def any_running(sessions: SessionFactory, which: ColumnElement[bool]) -> bool:
    """Return whether one of some programs has not ended."""
    with sessions() as session:
        query = select(ProgramRow.id).where(which, ProgramRow.state == "running").limit(1)
        return read_only(session).scalar(query) is not None


def request_cancel(sessions: SessionFactory, which: ColumnElement[bool], reason: str) -> None:
    """Have programs cancelled by the processes that run them. The first reason counts."""
    with sessions.begin() as session:
        session.execute(
            update(ProgramRow)
            .where(which, ProgramRow.state == "running", ProgramRow.reason == "")
            .values(reason=reason),
            execution_options={"synchronize_session": False},
        )


def of_user(tenant_id: str, user: str) -> ColumnElement[bool]:
    """Return the condition for the programs of a user."""
    return and_(ProgramRow.tenant_id == tenant_id, ProgramRow.user_id == user)


def _stopped(times: Sequence[datetime | None]) -> str:
    reasons = (
        "its tenant was deleted",
        "its tenant is suspended",
        "its app was deleted",
        "its app is suspended",
    )
    return next(
        (reason for reason, time in zip(reasons, times, strict=True) if time is not None), ""
    )


def delete_before(session: Session, time: datetime, *, max_rows: int = 1_000) -> int:
    """Delete programs that ended before ``time``, with their outputs; at most ``max_rows``."""
    return delete_some(session, ProgramRow, ProgramRow.ended_at < time, max_rows)


def _steps(change: ProgramChange) -> Iterable[dict[str, Any]]:
    for kind in ("node", "task"):
        for name, record in change.steps.get(f"{kind}s", {}).items():
            yield {
                "tenant_id": change.key.tenant,
                "app_id": change.key.app,
                "program_id": change.key.run_id,
                "kind": kind,
                "name": name,
                "record": record,
            }
