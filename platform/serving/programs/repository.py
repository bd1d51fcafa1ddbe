"""Store programs and their steps. Queries for a tenant are scoped to it; the caller commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.orm import Session

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.interactions.programs.program_state import ProgramState
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.programs import ProgramRow, ProgramStep
from fairserve.platform.db.rows import delete_some, has_key
from fairserve.platform.db.upsert import upsert


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
    steps: Mapping[str, Any] = field(default_factory=lambda: {"nodes": {}, "tasks": {}})
    """Records of nodes and tasks by name."""

    @property
    def run_state(self) -> dict[str, Any]:
        """The state of its run, for ``ProgramRun.restore``."""
        return {"cancelled": self.state == "cancelled", **self.steps}


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """A change of a program."""

    key: ProgramKey
    steps: Mapping[str, Any] = field(default_factory=dict)
    """Records that changed, by ``nodes`` and ``tasks`` and by name."""
    state: ProgramState = "running"
    reason: str = ""
    ended_at: datetime | None = None
    """None: it has not ended."""


def insert(session: Session, program: SavedProgram) -> None:
    """Insert a program. Raises IntegrityError if the id was used, or the app was deleted."""
    session.add(
        ProgramRow(
            tenant_id=program.key.tenant,
            app_id=program.key.app,
            id=program.key.run_id,
            user_id=program.user,
            declaration=dict(program.declaration),
            limits=asdict(program.limits),
            state=program.state,
            reason=program.reason,
            created_at=program.created_at,
            ended_at=program.ended_at,
        )
    )
    session.flush()


def remove(session: Session, key: ProgramKey) -> None:
    """Delete a program."""
    session.execute(delete(ProgramRow).where(has_key(ProgramRow, key)))


def apply(session: Session, changes: Sequence[ProgramChange]) -> set[ProgramKey]:
    """Write changes. Return the programs that still exist; others were deleted with their app."""
    keys = {change.key for change in changes}
    columns = (ProgramRow.tenant_id, ProgramRow.app_id, ProgramRow.id)
    statement = select(*columns).where(tuple_(*columns).in_(keys))
    there = {ProgramKey(*row) for row in session.execute(statement)}
    kept = [change for change in changes if change.key in there]
    upsert(session, ProgramStep, (row for change in kept for row in _steps(change)))
    for change in kept:
        if change.ended_at is not None:
            session.execute(
                update(ProgramRow)
                .where(has_key(ProgramRow, change.key))
                .values(state=change.state, reason=change.reason, ended_at=change.ended_at)
            )
    return there


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
        steps=found,
    )


def running(sessions: SessionFactory) -> list[tuple[ProgramKey, str]]:
    """Return the live programs, the oldest first, each with what forbids it to continue, or ``""``."""
    query = (
        select(
            ProgramRow.tenant_id,
            ProgramRow.app_id,
            ProgramRow.id,
            Tenant.deleted_at,
            Tenant.suspended_at,
            App.deleted_at,
            App.suspended_at,
        )
        .join(Tenant, Tenant.id == ProgramRow.tenant_id)
        .join(App, App.id == ProgramRow.app_id)
        .where(ProgramRow.state == "running")
        .order_by(ProgramRow.created_at, ProgramRow.id)
    )
    with sessions() as session:
        rows = read_only(session).execute(query).all()
    return [(ProgramKey(*row[:3]), _stopped(row[3:])) for row in rows]


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
