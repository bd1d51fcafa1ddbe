"""``fairserve trace export``: write the recording of a server as a trace.

Exit codes: 0 written; 1 nothing was recorded, or the output cannot be written; 2 usage error. A server
may be running in the same data folder.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fairserve.engine.simulated.traces.interaction_file import encode_trace, write_trace
from fairserve.engine.simulated.traces.model import TraceError
from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser
from fairserve.platform.reporting.traffic.export import Export, export
from fairserve.platform.reporting.traffic.segments import read_recording, recording_folder
from fairserve.platform.server.settings_flags import settings_from

FAILED = 1
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")
SINCE = (
    "a duration back from now such as 90m, 24h or 7d, or an ISO 8601 time (UTC if it has no zone)"
)


def main(argv: Sequence[str]) -> int:
    """Export a trace; return the exit code."""
    arguments = _parse(argv)
    given = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    try:
        since_at = since(arguments.since, datetime.now(UTC))
        folder = recording_folder(settings_from(argparse.Namespace(**given)).db.data_dir)
    except ValueError as error:
        return _fail(str(error), USAGE_ERROR)
    try:
        calls, block_tokens, damaged = read_recording(folder, since_at)
    except OSError as error:
        return _fail(f"the recording cannot be read: {error}", FAILED)
    found = export(calls, block_tokens, since_at)
    del calls
    if not found.trace.interactions:
        return _fail(f"no run that began since {_text(since_at)} is recorded in {folder}", FAILED)
    try:
        if arguments.out is None:
            sys.stdout.buffer.write(encode_trace(found.trace, Path("<stdout>")))
            sys.stdout.buffer.flush()
        else:
            write_trace(found.trace, arguments.out)
    except (TraceError, OSError) as error:
        return _fail(str(error), FAILED)
    print(_summary(found, damaged), file=sys.stderr)
    return 0


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


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        prog="fairserve trace",
        description="Traces of live traffic.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    action = actions.add_parser(
        "export",
        help="write what a server has recorded as a trace",
        description="Write the runs that a server has recorded as a trace, for `fairserve simulate`: "
        "arrivals, dependencies, token counts and block ids, users under pseudonyms; never text. "
        "The server may be running.",
        epilog="What is recorded, and for how long: docs/guide/traces.md.",
        allow_abbrev=False,
    )
    action.add_argument(
        "--since", required=True, metavar="TIME", help=f"runs that began since: {SINCE}"
    )
    action.add_argument(
        "--out",
        type=_output,
        metavar="FILE",
        help="the file, gzip if it ends in .gz (default: standard output)",
    )
    action.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the server's data folder. Environment: FAIRSERVE_DATA_DIR",
    )
    return parser.parse_args(argv)


def _output(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


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


def _fail(message: str, code: int) -> int:
    print(f"fairserve trace: {message}", file=sys.stderr)
    return code
