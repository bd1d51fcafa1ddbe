"""Contents of an export's file, as a stream of bytes.

A report is computed at once, as by ``GET /v1/usage``; its row limits bound the memory. Interactions, of
which there may be millions, are read in pages, each in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from pydantic import ValidationError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.validation import text_of
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.reporting.exports import interaction_files
from fairserve.platform.reporting.exports.outages import RetryWhileDbDown
from fairserve.platform.reporting.settings import ReportSettings
from fairserve.platform.reporting.usage import interactions, reports
from fairserve.platform.reporting.usage.formats import MEDIA_TYPES, document
from fairserve.platform.reporting.usage.schemas import (
    Format,
    Group,
    InteractionUsage,
    InteractionUsageQuery,
    UsageQuery,
)

PAGE_ROWS = 1_000

T = TypeVar("T")
Query = TypeVar("Query", UsageQuery, InteractionUsageQuery)


class ContentReader:
    """Reads the rows of one export, with a new transaction for each read."""

    def __init__(self, sessions: SessionFactory, retry_while_db_down: RetryWhileDbDown) -> None:
        self._sessions = sessions
        self._retry_while_db_down = retry_while_db_down

    def read(self, ask: Callable[[Session], T]) -> T:
        """Return the result of ``ask``; wait while the database is down."""

        def once() -> T:
            with self._sessions() as session:
                return ask(read_only(session))

        return self._retry_while_db_down(once)


def content(
    export: ReportExport,
    reader: ContentReader,
    *,
    settings: ReportSettings,
    progress: Callable[[float], None],
) -> Iterator[bytes]:
    """Return the bytes of the file. Raises InvalidRequestError for a query that is no longer allowed."""
    if export.kind == "interactions":
        pages = _pages(export, reader, progress)
        return interaction_files.WRITERS[export.format](pages)
    return iter([_report(export, reader, settings)])


def media_type(export: ReportExport) -> str:
    """Return the media type of the file."""
    if export.kind == "interactions" and export.format == "json":
        return "application/x-ndjson"
    format: Format = export.format  # type: ignore[assignment]  # the column has no other value
    return MEDIA_TYPES[format]


def file_name(export: ReportExport) -> str:
    """Return the file name for the download."""
    lines = export.kind == "interactions" and export.format == "json"
    return f"{export.kind}.{'jsonl' if lines else export.format}"


def _report(export: ReportExport, reader: ContentReader, settings: ReportSettings) -> bytes:
    query = _query(export, UsageQuery)
    default_group: Group = "user" if export.app_id else "app"
    if export.asked_by == "operator":
        default_group = "app" if export.tenant_id else "tenant"
    format: Format = export.format  # type: ignore[assignment]  # the column has no other value

    def make(session: Session) -> bytes:
        ask = reports.reporter(session, settings, tenant_id=export.tenant_id, app_id=export.app_id)
        return document(query, format, ask, default_group).content

    return reader.read(make)


def _pages(
    export: ReportExport, reader: ContentReader, progress: Callable[[float], None]
) -> Iterator[Sequence[InteractionUsage]]:
    """Yield all interactions, newest first. One that begins during the export is not among them."""
    query = _query(export, InteractionUsageQuery)
    tenant_id, app_id = export.tenant_id, export.app_id
    total = reader.read(
        lambda session: interactions.count(session, query, tenant_id=tenant_id, app_id=app_id)
    )
    done = 0
    last: InteractionUsage | None = None
    while True:
        page = reader.read(
            partial(
                interactions.after,
                query=query,
                last=last,
                tenant_id=tenant_id,
                app_id=app_id,
                rows=PAGE_ROWS,
            )
        )
        if page:
            done += len(page)
            progress(min(done / max(total, 1), 1.0))
            last = page[-1]
            yield page
        if len(page) < PAGE_ROWS:
            return


def _query(export: ReportExport, model: type[Query]) -> Query:
    try:
        return model(**export.query, user=export.user_id)
    except ValidationError as error:
        problem = text_of(error.errors()[0])
        raise InvalidRequestError(f"the query is no longer allowed: {problem}") from None
