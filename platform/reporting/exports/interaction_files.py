"""Interactions as CSV, JSON lines or Parquet, written while they are read.

Each writer holds a page of rows, and Parquet a group of rows, never the file.
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
    "input_tokens": "count",
    "system_tokens": "count",
    "cached_tokens": "count",
    "extend_tokens": "count",
    "output_tokens": "count",
    "service": "number",
    "cost": "money",
    "wasted_tokens": "count",
    "waste_cause": "text",
}
"""The fields of :class:`InteractionUsage`, in this order."""
GROUP_ROWS = 32_000
"""Of a Parquet file at most, and a page more."""


def as_csv(pages: Pages) -> Iterator[bytes]:
    """UTF-8 with a head; a text that a spreadsheet would take for a formula begins with ``'``."""
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
    """One object a line, as the listing shows it."""
    for page in pages:
        yield b"".join(row.model_dump_json().encode("utf-8") + b"\n" for row in page)


def as_parquet(pages: Pages) -> Iterator[bytes]:
    """Money is a decimal with nine places, times are UTC. Raises InvalidRequestError without pyarrow."""
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
    """A file that is only written at its end, and from which what was written can be taken."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Keep the bytes until they are taken."""
        self._chunks.append(bytes(data))
        return len(data)

    def drain(self) -> bytes:
        """What was written since the last time."""
        taken = b"".join(self._chunks)
        self._chunks.clear()
        return taken


WRITERS: Mapping[str, Callable[[Pages], Iterator[bytes]]] = {
    "csv": as_csv,
    "json": as_json_lines,
    "parquet": as_parquet,
}
