"""Reports in the requested format, for HTTP and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fairserve.platform.reporting.usage.page import to_html
from fairserve.platform.reporting.usage.plots import require_figures
from fairserve.platform.reporting.usage.schemas import Format, Group, UsageQuery, UsageReport
from fairserve.platform.reporting.usage.table import MAX_ROWS, require_pyarrow, to_csv, to_parquet

MAX_ANSWERED_ROWS = 10_000
"""Maximum rows of a table in a response, about 2 s of CPU time. Exports have ``MAX_ROWS``."""

Ask = Callable[..., UsageReport]
"""Function that computes the report of a :class:`UsageQuery`."""

MEDIA_TYPES: Mapping[Format, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "html": "text/html; charset=utf-8",
}


class Document(NamedTuple):
    """A report as bytes, with its HTTP headers."""

    content: bytes
    media_type: str
    headers: Mapping[str, str]


def document(
    query: UsageQuery,
    format: Format,
    ask: Ask,
    default_group: Group,
    max_rows: int = MAX_ROWS,
) -> Document:
    """Return the report as a document. CSV and Parquet have all rows, JSON and HTML a page.

    Raises InvalidRequestError for more than ``max_rows`` rows, or if an extra is not installed.
    """
    headers = {"X-Content-Type-Options": "nosniff"}
    if format == "html":
        # The page has no scripts and loads nothing.
        headers["Content-Security-Policy"] = (
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        )
        content = to_html(query, ask, default_group)
    elif format == "json":
        content = ask(query).model_dump_json().encode("utf-8")
    else:
        headers["Content-Disposition"] = f'attachment; filename="usage.{format}"'
        rows = min(max_rows, MAX_ROWS)
        everything = query.model_copy(update={"limit": rows, "offset": 0})
        whole = ask(everything, max_groups=rows)
        content = to_csv(whole) if format == "csv" else to_parquet(whole)
    return Document(content, MEDIA_TYPES[format], headers)


def require_extras(format: Format) -> None:
    """Raise InvalidRequestError if a package that the format needs is not installed."""
    if format == "parquet":
        require_pyarrow()
    elif format == "html":
        require_figures()
