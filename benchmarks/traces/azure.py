"""The public Azure traces: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Each row is a request. Times are wall-clock; the earliest becomes 0.

Weakness: the traces contain no users and no prefixes, so they show nothing about fairness or
sharing until an assignment rule adds users.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fairserve.benchmarks.traces.flat import flat_trace, single_call
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import TraceLine, read_lines
from fairserve.engine.simulated.traces.model import Trace

AZURE_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path, *, defaults: Defaults = Defaults()) -> Trace:
    """Read a file whose first line is the header.

    Interaction ids are line numbers. Raises `TraceError` for a row with other columns, a time that is
    not ISO 8601, a prompt below 1 token, or an output below 0.
    """
    lines = read_lines(path)
    next(lines, None)
    rows = []
    first: datetime | None = None
    for line in lines:
        time_text, prompt, output = line.columns(AZURE_HEADER)
        time = _time(line, time_text)
        if first is None:
            first = time
        elif (time.tzinfo is None) != (first.tzinfo is None):
            raise line.error("TIMESTAMP: times with and without a zone do not compare; use one")
        rows.append(
            (
                line,
                (time - first).total_seconds(),
                line.integer_text(prompt, "ContextTokens", least=1),
                line.integer_text(output, "GeneratedTokens"),
            )
        )
    start_s = min((row[1] for row in rows), default=0.0)
    return flat_trace(
        path,
        [
            single_call(
                str(line.number),
                app="azure",
                arrival_s=offset_s - start_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                defaults=defaults,
                origin=line.origin,
            )
            for line, offset_s, prompt_tokens, output_tokens in rows
        ],
    )


def _time(line: TraceLine, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise line.error(
            f"TIMESTAMP must be a time like 2023-11-16 18:15:46.680590, got {text!r}"
        ) from None
