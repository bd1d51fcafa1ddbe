"""Makes the exports that wait, and forgets those whose time is over.

Plain functions for threads and task queues. Any number of processes may run them at once, and be killed
at any point: what is half done is begun anew by the next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import or_, select
from sqlalchemy.exc import InterfaceError, OperationalError

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.db.leases import RowLeaseLostError
from fairserve.platform.reporting.exports import claims, repository
from fairserve.platform.reporting.exports.claims import Now
from fairserve.platform.reporting.exports.content import Reader, content
from fairserve.platform.reporting.exports.parts import PartWriter
from fairserve.platform.reporting.exports.patience import Patience, StoppedError
from fairserve.platform.reporting.settings import ReportSettings

logger = logging.getLogger(__name__)

WAIT = timedelta(days=7)
"""An export that nobody made in that time fails."""
FORGOTTEN_AFTER = timedelta(days=1)
"""A row stays for so long after its file has gone."""
_BATCH = 100


def make_exports(
    sessions: SessionFactory,
    settings: ReportSettings,
    *,
    stopping: Callable[[], bool] = lambda: False,
    now: Now = utc_now,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Make exports until none waits, or ``stopping`` says so; returns how many were handled.

    One that is under way then is given back. Raises OperationalError if the database does not answer.
    """
    kept = timedelta(hours=settings.reporting.export_retention_hours)
    patiently = Patience(stopping, pause)
    handled = 0
    while not stopping():
        export = claims.claim(sessions, now, kept)
        if export is None:
            break
        try:
            with claims.renewing_lease(sessions, export, now):
                _make(sessions, settings, export, patiently, now)
        except StoppedError:
            claims.release(sessions, export)
            break
        except RowLeaseLostError:
            logger.info("export %s was deleted or taken over while it was made", export.id)
        handled += 1
    return handled


def _make(
    sessions: SessionFactory,
    settings: ReportSettings,
    export: ReportExport,
    patiently: Patience,
    now: Now,
) -> None:
    """Make what was claimed, or write down why that cannot be."""
    failed = export.state != "running"
    # What attempts before this one have left, or all of them.
    patiently(lambda: repository.drop_parts(sessions, export.id, export.attempt + failed))
    if failed:
        return
    kept = timedelta(hours=settings.reporting.export_retention_hours)
    writer = PartWriter(sessions, export, settings.reporting, patiently, now)

    def told(progress: float) -> None:
        writer.progress = progress
        patiently.check()

    error = ""
    try:
        reader = Reader(sessions, patiently)
        for piece in content(export, reader, settings=settings, progress=told):
            writer.write(piece)
        writer.flush()
    except (RowLeaseLostError, StoppedError, InterfaceError, OperationalError):
        raise
    except FairServeError as refused:
        error = refused.message
    except Exception:
        logger.exception("export %s cannot be made", export.id)
        error = "an internal error; the server's log tells more"
    sha256 = None if error else writer.sha256
    patiently(lambda: claims.end(sessions, export, now, kept, error=error, sha256=sha256))
    if error:
        patiently(lambda: repository.drop_parts(sessions, export.id, export.attempt + 1))


def expire_exports(sessions: SessionFactory, *, now: Now = utc_now) -> int:
    """Delete the files whose time is over, somewhat later their rows, and parts that no file has.

    Returns how many exports it was; it may be called again at any point. Raises OperationalError.
    """
    at = now()
    with sessions.begin() as session:
        over = [ReportExport.state == "ready", ReportExport.expires_at <= at]
        handled = repository.change(session, over, state="expired", size_bytes=0)
        old = [claims.EXPORTS.waiting(at), ReportExport.created_at < at - WAIT]
        handled += repository.change(
            session,
            old,
            state="failed",
            error=f"nobody has made it in {WAIT.days} days; does a server run?",
            lease_until=None,
            size_bytes=0,
            finished_at=at,
            expires_at=at,
        )
    for export_id, before_attempt in _with_old_parts(sessions):
        repository.drop_parts(sessions, export_id, before_attempt)
    with sessions.begin() as session:
        forgotten = ReportExport.expires_at <= at - FORGOTTEN_AFTER
        ids = session.scalars(select(ReportExport.id).where(forgotten).limit(_BATCH)).all()
        handled += repository.remove(session, [ReportExport.id.in_(ids)])
    return handled


def _with_old_parts(sessions: SessionFactory) -> list[tuple[str, int]]:
    """Exports with parts that are of no file, and the attempt from which on parts are kept."""
    kept = ReportExport.state.in_(("ready", "running"))
    parts = (
        select(ReportExportPart.export_id)
        .where(
            ReportExportPart.export_id == ReportExport.id,
            or_(~kept, ReportExportPart.attempt < ReportExport.attempt),
        )
        .exists()
    )
    with sessions() as session:
        found = read_only(session).execute(
            select(ReportExport.id, ReportExport.attempt, kept).where(parts).limit(_BATCH)
        )
        return [(row[0], row[1] if row[2] else row[1] + 1) for row in found]
