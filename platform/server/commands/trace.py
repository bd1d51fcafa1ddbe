"""``fairserve trace export``: write the recording of a server as a trace.

Exit codes: 0 written; 1 nothing was recorded, or the output cannot be written; 2 usage error. A server
may be running in the same data folder.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairserve.engine.simulated.traces.interaction_file import encode_trace, write_trace
from fairserve.engine.simulated.traces.model import TraceError
from fairserve.platform.base.command_line import (
    FAILED,
    CommandError,
    CommandGroup,
    file_to_write,
    with_options,
)
from fairserve.platform.reporting.traffic.export import Export
from fairserve.platform.reporting.traffic.export import export as export_calls
from fairserve.platform.reporting.traffic.segments import read_recording, recording_folder
from fairserve.platform.server.configuration.flags import flag_options
from fairserve.platform.server.configuration.sources import settings_from

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")
SINCE = (
    "a duration back from now such as 90m, 24h or 7d, or an ISO 8601 time (UTC if it has no zone)"
)


def trace() -> None:
    """Traces of live traffic."""


app = CommandGroup(callback=trace)


@app.command(epilog="What is recorded, and for how long: docs/guide/traces.md.")
@with_options(*flag_options("data_dir", "config"))
def export(
    begin: Annotated[
        str, Option("--since", metavar="TIME", help=f"Runs that began since: {SINCE}.")
    ],
    out: Annotated[
        Path | None,
        Option(
            parser=file_to_write,
            metavar="FILE",
            help="The file, gzip if it ends in .gz; default: standard output.",
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Write what a server has recorded as a trace, for `fairserve simulate`.

    A trace has arrivals, dependencies, token counts and block ids, users under pseudonyms; never text.
    The server may be running.
    """
    try:
        since_at = since(begin, datetime.now(UTC))
        folder = recording_folder(settings_from(flags).db.data_dir)
    except ValueError as error:
        raise CommandError(str(error)) from error
    try:
        calls, block_tokens, damaged = read_recording(folder, since_at)
    except OSError as error:
        raise CommandError(f"the recording cannot be read: {error}", FAILED) from error
    found = export_calls(calls, block_tokens, since_at)
    del calls
    if not found.trace.interactions:
        text = f"no run that began since {_text(since_at)} is recorded in {folder}"
        raise CommandError(text, FAILED)
    try:
        if out is None:
            sys.stdout.buffer.write(encode_trace(found.trace, Path("<stdout>")))
            sys.stdout.buffer.flush()
        else:
            write_trace(found.trace, out)
    except (TraceError, OSError) as error:
        raise CommandError(str(error), FAILED) from error
    print(_summary(found, damaged), file=sys.stderr)


def since(text: str, now: datetime) -> float:
    """Return the epoch second that a text stands for. Raises ValueError with the allowed formats."""
    duration = _DURATION.fullmatch(text.strip())
    try:
        if duration is not None:
            time = now - timedelta(seconds=float(duration[1]) * _UNITS_S[duration[2]])
        else:
            time = datetime.fromisoformat(text.strip())
            time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        at = time.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"--since is {text!r}; allowed: {SINCE}") from None
    if time > now:
        raise ValueError(f"--since is {text!r}, which is in the future")
    return at


def _summary(found: Export, damaged: int) -> str:
    trace = found.trace
    parts = [
        f"{len(trace):,} interactions, {trace.calls:,} calls; second 0 is {_text(found.begin_at)}"
    ]
    if found.incomplete_runs:
        parts.append(f"{found.incomplete_runs:,} runs left out of which calls are missing")
    if found.empty_calls:
        parts.append(f"{found.empty_calls:,} calls left out that generated nothing")
    if damaged:
        parts.append(f"{damaged:,} damaged lines passed over")
    return "; ".join(parts)


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
