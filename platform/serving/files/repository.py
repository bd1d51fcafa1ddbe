"""Queries on files. Queries for a key are scoped to its app; the caller commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.db.batches import Batch, File
from fairserve.platform.db.identity import App, Tenant

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
"""States of batches that have not ended."""


class FileOwner(NamedTuple):
    """The app that owns files and batches."""

    tenant: str
    app: str


def find(session: Session, owner: FileOwner, file_id: str, *, lock: bool = False) -> File | None:
    """Return a complete file of an app."""
    statement = select(File).where(File.id == file_id, *_of(owner), File.state == "ready")
    return session.scalars(statement.with_for_update() if lock else statement).one_or_none()


def page(
    session: Session,
    owner: FileOwner,
    *,
    purpose: str | None,
    after: str | None,
    limit: int,
    ascending: bool,
) -> Sequence[File]:
    """Return complete files of an app in the order of their creation, from one on.

    Raises InvalidRequestError for an unknown ``after``: an empty page would end a client's loop that
    deletes what it lists, and leave the rest.
    """
    where = [*_of(owner), File.state == "ready"]
    if purpose is not None:
        where.append(File.purpose == purpose)
    if after is not None:
        last = session.execute(
            select(File.created_at, File.id).where(File.id == after, *_of(owner))
        ).one_or_none()
        if last is None:
            raise InvalidRequestError("after: there is no such file", param="after")
        where.append(beyond(File.created_at, File.id, last, ascending=ascending))
    order = [File.created_at, File.id] if ascending else [File.created_at.desc(), File.id.desc()]
    return session.scalars(select(File).where(*where).order_by(*order).limit(limit)).all()


def beyond(
    time: InstrumentedAttribute[datetime],
    key: InstrumentedAttribute[str],
    last: Any,
    *,
    ascending: bool,
) -> ColumnElement[bool]:
    """Return the condition for the rows that follow ``last``, a time and an id, in a list."""
    at, last_id = last
    if ascending:
        return or_(time > at, and_(time == at, key > last_id))
    return or_(time < at, and_(time == at, key < last_id))


def lock_tenant(session: Session, tenant_id: str) -> None:
    """Lock a tenant's row, so that checks of its bounds see each other's files and batches."""
    session.scalar(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(key_share=True))


def kept(session: Session, tenant_id: str | None = None) -> tuple[int, int]:
    """Return number and bytes of the files of a tenant, or of all.

    Files that are being written count, and so do the results of batches that have no file yet.
    """
    files = select(func.count(File.id), func.coalesce(func.sum(File.size_bytes), 0)).where(
        File.state != "abandoned"
    )
    results = select(func.coalesce(func.sum(Batch.result_bytes), 0))
    if tenant_id is not None:
        files = files.where(File.tenant_id == tenant_id)
        results = results.where(Batch.tenant_id == tenant_id)
    number, size_bytes = session.execute(files).one()
    return number, int(size_bytes) + int(session.scalar(results) or 0)


def abandon(session: Session, at: datetime, which: ColumnElement[bool] | None = None) -> None:
    """Release files for deletion from ``at`` on: nobody reads or counts them.

    Default: all that are being written.
    """
    session.execute(
        update(File)
        .where(File.state == "writing" if which is None else which)
        .values(state="abandoned", size_bytes=0, expires_at=at)
    )


def used_by_batch(session: Session, file_id: str) -> str | None:
    """Return a batch that has not ended and reads the file."""
    return session.scalar(
        select(Batch.id).where(Batch.input_file_id == file_id, Batch.state.in_(UNFINISHED)).limit(1)
    )


def deletable(session: Session, now: datetime, limit: int) -> list[str]:
    """Return files that have expired, also as abandoned ones, or whose app is deleted.

    Files of batches that have not ended are kept.
    """
    gone = select(App.id).where(
        or_(
            App.deleted_at.is_not(None),
            App.tenant_id.in_(select(Tenant.id).where(Tenant.deleted_at.is_not(None))),
        )
    )
    in_use = exists().where(Batch.input_file_id == File.id, Batch.state.in_(UNFINISHED))
    return list(
        session.scalars(
            select(File.id)
            .where(
                or_(File.expires_at <= now, and_(File.state != "abandoned", File.app_id.in_(gone))),
                ~in_use,
            )
            .limit(limit)
        )
    )


def _of(owner: FileOwner) -> list[ColumnElement[bool]]:
    return [File.tenant_id == owner.tenant, File.app_id == owner.app]
