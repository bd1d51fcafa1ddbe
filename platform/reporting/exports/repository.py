"""Queries on exports and their parts. Queries for a key return only what the key may read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import ColumnElement, Select, delete, func, select
from sqlalchemy.orm import Session

from fairserve.platform.base.shared_limit import allowed_of
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.exports import ReportExport, ReportExportPart

UNFINISHED = ("queued", "running")
MAX_BYTES = 1 << 30
"""Total size of the files of exports; then new exports get 429, and running ones fail."""
MAX_BYTES_PER_TENANT = 1 << 28
"""Total size of the files of one tenant's exports."""
_DELETED_PARTS = 16
"""Maximum number of parts deleted by one transaction."""


@dataclass(frozen=True, slots=True)
class ExportViewer:
    """The requester: an app for itself, a tenant for all its apps, or an operator."""

    asks_as: Literal["app", "tenant", "operator"]
    tenant_id: str | None = None
    app_id: str | None = None

    def sees(self) -> list[ColumnElement[bool]]:
        """Return the conditions for the exports that it may read. An operator may read all."""
        if self.asks_as == "operator":
            return []
        own = [ReportExport.tenant_id == self.tenant_id]
        if self.asks_as == "tenant":
            return [*own, ReportExport.asked_by != "operator"]
        return [*own, ReportExport.app_id == self.app_id, ReportExport.asked_by == "app"]

    def shares_bounds(self) -> list[ColumnElement[bool]]:
        """Return the conditions for the exports that share limits: a tenant's, or operators'."""
        if self.asks_as == "operator":
            return [ReportExport.asked_by == "operator"]
        return [ReportExport.tenant_id == self.tenant_id, ReportExport.asked_by != "operator"]


def same_bounds(export: ReportExport) -> list[ColumnElement[bool]]:
    """Return the conditions for the exports that share limits with this one."""
    operators = export.asked_by == "operator"
    return ExportViewer("operator" if operators else "tenant", export.tenant_id).shares_bounds()


def get(
    session: Session, viewer: ExportViewer, export_id: str, *, lock: bool = False
) -> ReportExport | None:
    """Return an export that the viewer may read; ``lock`` locks its row."""
    statement = select(ReportExport).where(ReportExport.id == export_id, *viewer.sees())
    if lock:
        statement = statement.with_for_update()
    return session.scalars(statement).one_or_none()


def listed(viewer: ExportViewer, tenant_id: str | None) -> Select[ReportExport]:
    """Return the statement of the exports that the viewer may read, newest first, of one or all
    tenants.
    """
    where = viewer.sees()
    if tenant_id is not None:
        where.append(ReportExport.tenant_id == tenant_id)
    order = (ReportExport.created_at.desc(), ReportExport.id)
    return select(ReportExport).where(*where).order_by(*order)


def kept_bytes(session: Session, where: Sequence[ColumnElement[bool]] = ()) -> int:
    """Return the stored bytes of files, including those of files in progress."""
    return int(session.scalar(select(func.sum(ReportExport.size_bytes)).where(*where)) or 0)


def allowed_bytes(session: Session, own_bytes: int) -> int:
    """Return what the owner of ``own_bytes`` may have of the space for files, beside the others."""
    others_bytes = kept_bytes(session) - own_bytes
    return allowed_of(MAX_BYTES, MAX_BYTES_PER_TENANT, others_bytes)


def parts(
    sessions: SessionFactory, export_id: str, attempt: int, size_bytes: int
) -> Iterator[bytes]:
    """Yield the parts of a file, each read in its own transaction.

    Raises ConnectionAbortedError if the export was deleted: the parts so far are incomplete.
    """
    read_bytes = number = 0
    while read_bytes < size_bytes:
        with sessions() as session:
            part = read_only(session).scalar(
                select(ReportExportPart.data).where(
                    ReportExportPart.export_id == export_id,
                    ReportExportPart.attempt == attempt,
                    ReportExportPart.number == number,
                )
            )
        if part is None:
            raise ConnectionAbortedError("the export was deleted during the download")
        read_bytes += len(part)
        number += 1
        yield part


def drop_parts(sessions: SessionFactory, export_id: str, before_attempt: int) -> None:
    """Delete the parts of attempts before this one, in short transactions."""
    key = (ReportExportPart.export_id, ReportExportPart.attempt, ReportExportPart.number)
    old = (ReportExportPart.export_id == export_id, ReportExportPart.attempt < before_attempt)
    while True:
        with sessions.begin() as session:
            found = session.execute(select(*key).where(*old).limit(_DELETED_PARTS)).all()
            for row in found:
                session.execute(
                    delete(ReportExportPart).where(
                        *(column == value for column, value in zip(key, row, strict=True))
                    )
                )
        if len(found) < _DELETED_PARTS:
            return


def is_over(export: ReportExport, now: datetime) -> bool:
    """Return whether the file was deleted or is due for deletion."""
    return export.state == "expired" or (
        export.state == "ready" and export.expires_at is not None and export.expires_at <= now
    )
