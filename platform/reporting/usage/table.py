"""Convert a whole report to a flat table: CSV for spreadsheets, Parquet for programs.

Columns are typed and always in the same order; nested fields are named like ``ttft_s_p99``, and
rejections have a column for each reason. In CSV, texts that a spreadsheet would read as a formula get
the prefix ``'``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.reporting.usage.levels import STATES, WASTE_CAUSES
from fairserve.platform.reporting.usage.schemas import Sums, UsageReport, UsageRow

MAX_ROWS = 100_000
"""Maximum rows of a table; JSON is paged instead."""
NO_EXTRA = "this format needs an extra on the server: pip install 'fairserve[reports]'"
_FORMULA = frozenset("=+-@＝＋－＠")  # noqa: RUF001  spreadsheets read the full-width forms, too

Kind = Literal["text", "count", "number", "money", "day", "time"]


class Column(NamedTuple):
    """A column with a value or None for every row."""

    name: str
    kind: Kind
    values: list[Any]


def columns(report: UsageReport) -> list[Column]:
    """Return the report's rows as columns."""
    rows = report.items
    found: list[Column] = []

    def add(name: str, kind: Kind, value: Callable[[UsageRow], Any]) -> None:
        found.append(Column(name, kind, [value(row) for row in rows]))

    def add_fields(prefix: str, kind: Kind, part: str, names: Sequence[str]) -> None:
        for name in names:
            add(f"{prefix}{name}", kind, lambda row, name=name: _part(row, part, name))  # type: ignore[misc]

    for group in report.group_by:
        kind: Kind = "day" if group == "day" else "time" if group == "hour" else "text"
        add(group, kind, lambda row, group=group: getattr(row, group))  # type: ignore[misc]
        if group in ("tenant", "app"):
            add(
                f"{group}_name",
                "text",
                lambda row, group=group: report.names.get(getattr(row, group)),  # type: ignore[misc]
            )
    for name in Sums.model_fields:
        kind = "number" if name == "service" else "count"
        add(name, kind, lambda row, name=name: getattr(row, name))  # type: ignore[misc]
    add("cost", "money", lambda row: row.cost)
    add("cost_per_answer", "money", lambda row: row.cost_per_answer)
    add("currency", "text", lambda row: report.currency)
    add("unpriced_calls", "count", lambda row: row.unpriced_calls)
    add_fields("interactions_", "count", "interactions", STATES)
    add_fields("wasted_tokens_", "count", "wasted_by_cause", WASTE_CAUSES)
    for reason in sorted({reason for row in rows for reason in row.refusals or ()}):
        add(
            f"refusals_{reason}",
            "count",
            lambda row, reason=reason: (row.refusals or {}).get(reason, 0),  # type: ignore[misc]
        )
    for duration in ("queue_delay_s", "ttft_s"):
        add_fields(f"{duration}_", "number", duration, ("p50", "p90", "p99"))
        add_fields(f"{duration}_", "count", duration, ("count",))
    add_fields("", "number", "fairness", ("service_share", "entitled_share"))
    return found


def _part(row: UsageRow, part: str, name: str) -> Any:
    whole = getattr(row, part)
    return None if whole is None else getattr(whole, name)


def to_csv(report: UsageReport) -> bytes:
    """Return the report as UTF-8 CSV with a header."""
    table = columns(report)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([column.name for column in table])
    for row in zip(*(column.values for column in table), strict=True):
        writer.writerow([cell(value) for value in row])
    return text.getvalue().encode("utf-8")


def cell(value: Any) -> Any:
    """Return the CSV representation of a value."""
    if isinstance(value, str):
        return f"'{value}" if _is_formula(value) else value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value


def _is_formula(text: str) -> bool:
    """Return whether a spreadsheet may read the text as a formula.

    Spreadsheets drop white space before a formula when they import a file, and some start a new cell at
    a tab, a carriage return or a line feed.
    """
    return text[:1] in ("\t", "\r", "\n") or text.lstrip()[:1] in _FORMULA


def to_parquet(report: UsageReport) -> bytes:
    """Return the report as Parquet, with money as decimals of nine places and hours in the zone.

    Raises InvalidRequestError if the extra is not installed.
    """
    pa, pq = require_pyarrow()
    table = columns(report)
    arrays = [pa.array(column.values, parquet_type(column.kind, report.zone)) for column in table]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, names=[column.name for column in table]), sink)
    return sink.getvalue()


def parquet_type(kind: Kind, zone: str) -> Any:
    """Return the Arrow type of a kind of column; times are in ``zone``."""
    pa, _ = require_pyarrow()
    return {
        "text": pa.string(),
        "count": pa.int64(),
        "number": pa.float64(),
        "money": pa.decimal128(38, 9),
        "day": pa.date32(),
        "time": pa.timestamp("us", tz=zone),
    }[kind]


def require_pyarrow() -> tuple[Any, Any]:
    """Return ``pyarrow`` and ``pyarrow.parquet``. Raises InvalidRequestError if not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InvalidRequestError(NO_EXTRA, param="format") from None
    return pyarrow, pyarrow.parquet
