"""Reads spans of OpenTelemetry from the JSON documents that collectors and tracers write.

Two shapes are read: ``{"spans": [...]}``, with attributes as objects, and the OTLP export
``{"resourceSpans": [...]}``, with attributes as lists of key and value. A file is one document over
many lines, or one document per line. Every span is checked, including unused ones.

Weakness: a whole file is held in memory; an OTLP file in protobuf is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fairserve.engine.simulated.traces.lines import TraceLine, read_lines, shown
from fairserve.engine.simulated.traces.model import TraceError

DOCUMENT_KEYS = ("spans", "resourceSpans")
SpanKey = tuple[str, str]
"""Key of a span: trace id and span id."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_NS = 1 << 63
_ERROR_CODES = (2, "2", "ERROR", "STATUS_CODE_ERROR")
_KEY = re.compile(r'"(?P<key>spans|resourceSpans)"\s*:')


@dataclass(frozen=True, slots=True)
class Span:
    """A span; times are nanoseconds since 1970."""

    path: Path
    trace_id: str
    span_id: str
    parent: SpanKey | None
    """Key of the parent, which may be absent from the file."""
    name: str
    service: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: Mapping[str, Any]

    @property
    def key(self) -> SpanKey:
        """Return the key of the span in its file."""
        return self.trace_id, self.span_id

    def error(self, message: str) -> TraceError:
        """Return an error that names this span; the caller raises it."""
        return TraceError(f"{self.path}: span {self.span_id}: {message}")

    def text(self, name: str) -> str:
        """Return a text or number attribute as text; empty if it is missing or of another type."""
        value = self.attributes.get(name)
        return str(value) if type(value) in (str, int) else ""


def document_keys(path: Path) -> frozenset[str]:
    """Return the `DOCUMENT_KEYS` in the first line of the document that has one of them."""
    for line in read_lines(path):
        if found := _KEY.search(line.text):
            return frozenset({found["key"]})
    return frozenset()


def read_spans(path: Path) -> list[Span]:
    """Return all spans of the file, in its order.

    Raises `TraceError` for text that is not JSON, a file without spans, a span without ids, name or
    times, an end before the start, an id that occurs twice in a trace, and a span that is its own
    ancestor.
    """
    spans: dict[SpanKey, Span] = {}
    for line, document in _documents(path):
        for record, trace_id, resource in _records(line, document):
            span = _span(path, record, trace_id, resource)
            if span.key in spans:
                raise span.error(f"the id occurs twice in trace {shown(span.trace_id)}")
            spans[span.key] = span
    if not spans:
        raise TraceError(f"{path}: holds no spans; at least one is needed")
    _refuse_loops(spans)
    return list(spans.values())


def _documents(path: Path) -> Iterator[tuple[TraceLine, dict[str, Any]]]:
    lines = list(read_lines(path))
    if not lines:
        raise TraceError(f"{path}:1: the file is empty; a JSON document with spans is needed")
    try:
        json.loads(lines[0].text)
    except (ValueError, RecursionError):
        yield lines[0], _over_lines(path, lines)
    else:
        for line in lines:
            yield line, line.json_object()


def _over_lines(path: Path, lines: list[TraceLine]) -> dict[str, Any]:
    texts = [""] * lines[-1].number
    for line in lines:
        texts[line.number - 1] = line.text
    try:
        value = json.loads("\n".join(texts))
    except json.JSONDecodeError as error:
        at = TraceLine(path, min(error.lineno, lines[-1].number), "")
        raise at.error(
            f"not JSON ({error.msg}); one whole document, or one a line, is allowed"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON that can be read ({error})") from None
    if not isinstance(value, dict):
        raise lines[0].error("expected a JSON object with spans or resourceSpans")
    return value


def _records(
    line: TraceLine, document: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], object, dict[str, Any]]]:
    """Yield span records, each with its document's trace id and the attributes of its resource."""
    if "resourceSpans" in document:
        for group in _objects(line, document, "resourceSpans"):
            resource = group.get("resource") or {}
            if not isinstance(resource, dict):
                raise line.error("resource must be an object")
            attributes = _attributes(resource.get("attributes"))
            if attributes is None:
                raise line.error(
                    "resource: attributes must be an object, or a list of key and value"
                )
            for scope in _objects(line, group, "scopeSpans"):
                for record in _objects(line, scope, "spans"):
                    yield record, None, attributes
        return
    if "spans" not in document:
        raise line.error("expected a document with spans or resourceSpans")
    for record in _objects(line, document, "spans"):
        attributes = _attributes(record.get("resource_attributes"))
        if attributes is None:
            raise line.error("resource_attributes must be an object, or a list of key and value")
        yield record, document.get("trace_id"), attributes


def _objects(line: TraceLine, record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    values = record.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise line.error(f"{key} must be a list of objects")
    return values


def _span(path: Path, record: dict[str, Any], trace_id: object, resource: dict[str, Any]) -> Span:
    def given(*names: str) -> Any:
        return next((record[name] for name in names if record.get(name) is not None), None)

    span_id = given("span_id", "spanId")
    if not isinstance(span_id, str) or not span_id:
        raise TraceError(
            f"{path}: a span has span_id {shown(span_id)}; a text, not empty, is needed"
        )
    trace_id = given("trace_id", "traceId") or trace_id
    parent_id = given("parent_span_id", "parentSpanId") or None
    name = given("name") or ""
    attributes = _attributes(record.get("attributes"))

    def error(message: str) -> TraceError:
        return TraceError(f"{path}: span {span_id}: {message}")

    if not isinstance(trace_id, str) or not trace_id:
        raise error(f"trace_id must be a text, not empty, got {shown(trace_id)}")
    if not isinstance(parent_id, str | None):
        raise error(f"parent_span_id must be a text or null, got {shown(parent_id)}")
    if not isinstance(name, str):
        raise error(f"name must be a text, got {shown(name)}")
    if attributes is None:
        raise error("attributes must be an object, or a list of key and value")
    status = record.get("status")
    times_ns = []
    for side, camel in (("start", "startTimeUnixNano"), ("end", "endTimeUnixNano")):
        value = given(f"{side}_time", f"{side}_time_unix_nano", camel)
        time_ns = _nanoseconds(value)
        if time_ns is None:
            raise error(
                f"{side}_time must be a time like 2026-02-25T10:00:02.5+00:00 or an integer of "
                f"nanoseconds since 1970, got {shown(value)}"
            )
        times_ns.append(time_ns)
    if times_ns[1] < times_ns[0]:
        raise error("ends before it starts; an end at the start or later is allowed")
    return Span(
        path=path,
        trace_id=trace_id,
        span_id=span_id,
        parent=None if parent_id is None else (trace_id, parent_id),
        name=name,
        service=str(resource.get("service.name") or ""),
        start_ns=times_ns[0],
        end_ns=times_ns[1],
        failed=isinstance(status, dict) and status.get("code") in _ERROR_CODES,
        attributes=attributes,
    )


def _nanoseconds(value: object) -> int | None:
    """Return nanoseconds since 1970; None if it is not a time. Texts without a zone are UTC."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is int:
        return value if 0 <= value < _LATEST_NS else None
    if type(value) is not str:
        return None
    try:
        time = datetime.fromisoformat(value)
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    return since // timedelta(microseconds=1) * 1000 if since >= timedelta(0) else None


def _attributes(value: object) -> dict[str, Any] | None:
    """Return attributes of either shape as a dictionary; None for any other shape."""
    if value is None or isinstance(value, dict):
        return value or {}
    if not isinstance(value, list):
        return None
    attributes = {}
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            return None
        attributes[item["key"]] = _plain(item.get("value"))
    return attributes


def _plain(value: object) -> Any:
    """Return an OTLP value as a plain one; unknown kinds are returned unchanged."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, content),) = value.items()
    if kind == "intValue" and isinstance(content, str) and re.fullmatch(r"-?[0-9]{1,19}", content):
        return int(content)
    if kind == "arrayValue" and isinstance(content, dict):
        values = content.get("values", [])
        return [_plain(item) for item in values] if isinstance(values, list) else None
    if kind == "kvlistValue" and isinstance(content, dict):
        return _attributes(content.get("values", []))
    return content


def _refuse_loops(spans: Mapping[SpanKey, Span]) -> None:
    rooted: set[SpanKey] = set()
    for span in spans.values():
        path: list[SpanKey] = []
        at: Span | None = span
        while at is not None and at.key not in rooted:
            if at.key in path:
                raise at.error("is its own ancestor; parents must not form a loop")
            path.append(at.key)
            at = None if at.parent is None else spans.get(at.parent)
        rooted.update(path)
