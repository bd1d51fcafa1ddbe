"""Stream interactions as CSV, JSON lines or Parquet.

Each writer buffers a page of rows, Parquet a row group, never the whole file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairserve.platform.reporting.usage.schemas import InteractionUsage
from fairserve.platform.reporting.usage.table import Kind, cell, parquet_type, require_pyarrow

Pages = Iterable[Sequence[InteractionUsage]]

COLUMNS: Mapping[str, Kind] = {
    "tenant": "text",
    "app": "text",
    "interaction": "text",
    "user": "text",
    "state": "text",
    "opened_at": "time",
    "ended_at": "time",
    "calls": "count",
    "flex_calls": "count",
    "priority_calls": "count",
    "input_tokens": "count",
    "system_tokens": "count",
    "cached_tokens": "count",
    "extend_tokens": "count",
    "output_tokens": "count",
    "reasoning_tokens": "count",
    "service": "number",
    "cost": "money",
    "wasted_tokens": "count",
    "waste_cause": "text",
}
"""Fields of :class:`InteractionUsage`, in this order."""
GROUP_ROWS = 32_000
"""Rows after which a Parquet row group ends; it may exceed this by one page."""


def as_csv(pages: Pages) -> Iterator[bytes]:
    """Write UTF-8 with a header; prefix ``'`` to texts that a spreadsheet would read as a formula."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for page in pages:
        for row in page:
            writer.writerow([cell(getattr(row, name)) for name in COLUMNS])
        yield text.getvalue().encode("utf-8")
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode("utf-8")


def as_json_lines(pages: Pages) -> Iterator[bytes]:
    """Write one JSON object per line, as in the listing."""
    for page in pages:
        yield b"".join(row.model_dump_json().encode("utf-8") + b"\n" for row in page)


def as_parquet(pages: Pages) -> Iterator[bytes]:
    """Write money as decimals with nine places and times in UTC. Raises InvalidRequestError without
    pyarrow.
    """
    pa, pq = require_pyarrow()
    schema = pa.schema([(name, parquet_type(kind, "UTC")) for name, kind in COLUMNS.items()])
    sink = _Drain()
    with pq.ParquetWriter(sink, schema) as writer:
        batches: list[Any] = []
        for page in pages:
            arrays = [
                pa.array([getattr(row, field.name) for row in page], field.type) for field in schema
            ]
            batches.append(pa.record_batch(arrays, schema=schema))
            if sum(batch.num_rows for batch in batches) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(batches))
                batches.clear()
                yield sink.drain()
        if batches:
            writer.write_table(pa.Table.from_batches(batches))
    yield sink.drain()


class _Drain(io.RawIOBase):
    """A write-only file that hands over its bytes in steps."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Buffer the bytes until the next :meth:`drain`."""
        self._chunks.append(bytes(data))
        return len(data)

    def drain(self) -> bytes:
        """Return the bytes written since the last call."""
        taken = b"".join(self._chunks)
        self._chunks.clear()
        return taken


WRITERS: Mapping[str, Callable[[Pages], Iterator[bytes]]] = {
    "csv": as_csv,
    "json": as_json_lines,
    "parquet": as_parquet,
}
