"""Background jobs that run queued exports and delete expired ones.

Plain functions for threads and task queues. Any number of processes may run them at once and be killed
at any point: an unfinished export is restarted by the next process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.exc import InterfaceError, OperationalError

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.db.leases import RowLeaseLostError
from fairserve.platform.db.rows import changed, delete_some
from fairserve.platform.reporting.exports import claims, repository
from fairserve.platform.reporting.exports.claims import Now
from fairserve.platform.reporting.exports.content import ContentReader, content
from fairserve.platform.reporting.exports.outages import RetryWhileDbDown, StoppedError
from fairserve.platform.reporting.exports.parts import PartWriter
from fairserve.platform.reporting.settings import ReportSettings

logger = logging.getLogger(__name__)

KEPT = timedelta(hours=72)
"""Time for which the file of an export can be downloaded."""
WAIT = timedelta(days=7)
"""Maximum time in the queue, after which an export fails."""
FORGOTTEN_AFTER = timedelta(days=1)
"""Time for which a row is kept after its file was deleted."""
_BATCH = 100


def make_exports(
    sessions: SessionFactory,
    settings: ReportSettings,
    *,
    stopping: Callable[[], bool] = lambda: False,
    now: Now = utc_now,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Run exports until none is queued or ``stopping`` returns True; return the number handled.

    A stop releases the export in progress. Raises OperationalError if the database does not answer.
    """
    retry_while_db_down = RetryWhileDbDown(stopping, pause)
    handled = 0
    while not stopping():
        export = claims.claim(sessions, now, KEPT)
        if export is None:
            break
        try:
            with claims.renewing_lease(sessions, export, now):
                _make(sessions, settings, export, retry_while_db_down, now)
        except StoppedError:
            claims.release(sessions, export)
            break
        except RowLeaseLostError:
            logger.info(
                "export %s was deleted or claimed by another process while running", export.id
            )
        handled += 1
    return handled


def _make(
    sessions: SessionFactory,
    settings: ReportSettings,
    export: ReportExport,
    retry_while_db_down: RetryWhileDbDown,
    now: Now,
) -> None:
    """Run a claimed export, or store the reason of its failure."""
    failed = export.state != "running"
    # Parts of earlier attempts; after the last attempt, all parts.
    retry_while_db_down(lambda: repository.drop_parts(sessions, export.id, export.attempt + failed))
    if failed:
        return
    writer = PartWriter(sessions, export, retry_while_db_down, now)

    def set_progress(progress: float) -> None:
        writer.progress = progress
        retry_while_db_down.check()

    error = ""
    try:
        reader = ContentReader(sessions, retry_while_db_down)
        for piece in content(export, reader, settings=settings, progress=set_progress):
            writer.write(piece)
        writer.flush()
    except (RowLeaseLostError, StoppedError, InterfaceError, OperationalError):
        raise
    except FairServeError as refused:
        error = refused.message
    except Exception:
        logger.exception("export %s failed", export.id)
        error = "internal error; an operator finds details in the server's log"
    sha256 = None if error else writer.sha256
    retry_while_db_down(lambda: claims.end(sessions, export, now, KEPT, error=error, sha256=sha256))
    if error:
        retry_while_db_down(lambda: repository.drop_parts(sessions, export.id, export.attempt + 1))


def any_exports(sessions: SessionFactory) -> bool:
    """Return whether there is any export; without one there is nothing to make or to expire."""
    with sessions() as session:
        return read_only(session).scalar(select(ReportExport.id).limit(1)) is not None


def expire_exports(sessions: SessionFactory, *, now: Now = utc_now) -> int:
    """Delete the files of expired exports, later their rows, and parts without a file.

    Returns the number of exports handled. Idempotent. Raises OperationalError.
    """
    at = now()
    with sessions.begin() as session:
        over = update(ReportExport).where(
            ReportExport.state == "ready", ReportExport.expires_at <= at
        )
        handled = changed(session, over.values(state="expired", size_bytes=0))
        old = update(ReportExport).where(
            claims.EXPORTS.waiting(at), ReportExport.created_at < at - WAIT
        )
        failed = {
            "state": "failed",
            "error": f"not started within {WAIT.days} days; check that background jobs are running",
            "lease_until": None,
            "size_bytes": 0,
            "finished_at": at,
            "expires_at": at,
        }
        handled += changed(session, old.values(failed))
    for export_id, before_attempt in _with_old_parts(sessions):
        repository.drop_parts(sessions, export_id, before_attempt)
    with sessions.begin() as session:
        forgotten = ReportExport.expires_at <= at - FORGOTTEN_AFTER
        handled += delete_some(session, ReportExport, forgotten, _BATCH)
    return handled


def _with_old_parts(sessions: SessionFactory) -> list[tuple[str, int]]:
    """Return the exports with obsolete parts, each with the first attempt to keep."""
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
