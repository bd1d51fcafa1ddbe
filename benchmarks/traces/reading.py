"""Reads a trace of any known format: ours, and others through adapters.

The first line that is not blank identifies the format, or, if it only begins a JSON document over
many lines, a key of that document; only a pair of ServeGen files must also be named accordingly.
The formats and their defaults are in ``docs/guide/traces.md``.

Weakness: nothing else is checked; a file that changes format later is an error there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fairserve.benchmarks.traces.azure import AZURE_HEADER, read_azure
from fairserve.benchmarks.traces.mooncake import MOONCAKE_KEYS, read_mooncake
from fairserve.benchmarks.traces.otel import read_otel
from fairserve.benchmarks.traces.otel_spans import DOCUMENT_KEYS, document_keys
from fairserve.benchmarks.traces.servegen import (
    PROMPT_KEYS,
    RATES_HEADER,
    ServeGenOptions,
    read_servegen,
)
from fairserve.benchmarks.traces.vtc_csv import VTC_HEADER, read_vtc_csv
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.interaction_file import read_interactions
from fairserve.engine.simulated.traces.lines import read_lines
from fairserve.engine.simulated.traces.model import Trace, TraceError


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format: the test of a file's start, and a description for error messages."""

    first_line: str
    matches: Callable[[str, frozenset[str]], bool]
    """Test of the first line and, if it begins a JSON object, of the object's keys."""


def _header(columns: tuple[str, ...]) -> TraceFormat:
    text = ",".join(columns)
    return TraceFormat(text, lambda line, _keys: line == text)


FORMATS: Mapping[str, TraceFormat] = MappingProxyType(
    {
        "interactions": TraceFormat(
            '{"iid", "bs", "calls": [...], ...}', lambda _line, keys: "calls" in keys
        ),
        "mooncake": TraceFormat(
            "{" + ", ".join(f'"{key}"' for key in MOONCAKE_KEYS) + "}",
            lambda _line, keys: keys >= {"input_length", "output_length"},
        ),
        "azure": _header(AZURE_HEADER),
        "vtc": _header(VTC_HEADER),
        "servegen rates": _header(RATES_HEADER),
        "servegen lengths": TraceFormat(
            '{"client", "t_s", "input_tokens": [...], "output_tokens": [...]}',
            lambda _line, keys: (
                keys >= {"client", "t_s", "output_tokens"} and bool(keys & set(PROMPT_KEYS))
            ),
        ),
        "otel": TraceFormat(
            '{"spans": [...], ...} or {"resourceSpans": [...]}, on one line or over many',
            lambda _line, keys: bool(keys & set(DOCUMENT_KEYS)),
        ),
    }
)
"""Known formats by name, in the order in which they are tried."""


def read_trace(
    path: str | Path,
    *,
    defaults: Defaults = Defaults(),
    servegen: ServeGenOptions = ServeGenOptions(),
) -> Trace:
    """Read the trace in ``path``, plain or gzip.

    ``defaults`` fill in missing fields. ``servegen`` affects only its files.
    Raises `TraceError` that names file, line and allowed values.
    """
    path = Path(path)
    name = trace_format(path)
    if name == "interactions":
        return read_interactions(path, defaults=defaults)
    if name == "mooncake":
        return read_mooncake(path, defaults=defaults)
    if name == "azure":
        return read_azure(path, defaults=defaults)
    if name == "vtc":
        return read_vtc_csv(path, defaults=defaults)
    if name == "otel":
        return read_otel(path, defaults=defaults)
    return read_servegen(path, defaults=defaults, options=servegen)


def trace_format(path: Path) -> str:
    """Return the name of a file's format in `FORMATS`. Raises `TraceError` for an unknown format."""
    first = next(read_lines(path), None)
    if first is None:
        raise TraceError(f"{path}:1: the file is empty; {_known()}")
    begins_object = first.text.startswith("{")
    try:
        value = json.loads(first.text) if begins_object else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        keys = frozenset(value)
    else:
        keys = document_keys(path) if begins_object else frozenset()
    for name, known in FORMATS.items():
        if known.matches(first.text, keys):
            return name
    if value is None and begins_object:
        first.json_object()  # raises the error of a broken object
    raise first.error(f"unknown format; {_known()}")


def _known() -> str:
    lines = (f"{name}: {known.first_line}" for name, known in FORMATS.items())
    return "known are files that begin with\n  " + "\n  ".join(lines)
