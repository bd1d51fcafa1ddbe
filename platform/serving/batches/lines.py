"""Lines of a batch's input file, and the lines of its results, in OpenAI's shapes."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from fairserve.engine.wire.worker_json import MAX_DEPTH, is_too_deep
from fairserve.platform.base.errors import FairServeError

MAX_ERRORS = 100
"""Errors of an input file that are reported."""
MAX_CUSTOM_ID_CHARS = 256
_EXPIRED = {
    "code": "batch_expired",
    "message": "the completion window ended before the call was made",
}
_CANCELLED = {
    "code": "batch_cancelled",
    "message": "the batch was cancelled before the call had ended",
}
_WRITTEN = re.compile(rb"\S[^\n]*")
"""A line that is not blank, without spaces at its beginning."""
_FIELDS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One call of a batch."""

    number: int
    custom_id: str
    body: bytes
    """The body of the call, JSON."""
    user: str
    """The end user that the body names, unchecked; "" if none."""


class LineError(Exception):
    """A line that is no call. ``plain`` is its entry in the errors of the batch."""

    def __init__(
        self, number: int | None, code: str, message: str, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.plain: dict[str, Any] = {
            "code": code,
            "line": number,
            "message": message,
            "param": param,
        }


def split(pieces: Iterable[bytes], max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each line that is not blank. Memory: a line and a piece.

    Raises LineError at a line of more than ``max_bytes``.
    """
    number, rest = 1, b""
    for piece in pieces:
        whole, end, rest = (rest + piece).rpartition(b"\n")
        yield from _lines(number, whole + end, max_bytes)
        number += whole.count(b"\n") + len(end)
        if len(rest) > max_bytes:
            raise _too_long(number, max_bytes)
    yield from _lines(number, rest, max_bytes)


def _lines(number: int, text: bytes, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text whose first one has this number.

    A blank line costs no step of Python: a file of blank lines only would occupy a core for a minute.
    """
    last = 0
    for found in _WRITTEN.finditer(text):
        number += text.count(b"\n", last, found.start())
        begin, last = text.rfind(b"\n", last, found.start()) + 1, found.end()
        if last - begin > max_bytes:
            raise _too_long(number, max_bytes)
        raw = text[begin:last]
        if number == 1:  # editors on Windows begin a file with a byte order mark
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if raw.strip():
            yield number, raw


def _too_long(number: int, max_bytes: int) -> LineError:
    return LineError(number, "line_too_long", f"the line has over {max_bytes:,} bytes")


def parse(number: int, raw: bytes, endpoint: str) -> BatchLine:
    """Return the call of a line. Raises LineError."""
    try:
        plain = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise LineError(number, "invalid_json_line", f"the line is not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise LineError(number, "invalid_json_line", "the line must be a JSON object")
    if is_too_deep(plain, raw):
        text = f"the line is nested too deeply; allowed: {MAX_DEPTH} levels"
        raise LineError(number, "invalid_json_line", text)
    given = {name for name, value in plain.items() if value is not None}
    unknown = next(iter(given - _FIELDS), None)
    if unknown is not None:
        text = f"unknown field; allowed: {', '.join(sorted(_FIELDS))}"
        raise LineError(number, "unknown_parameter", text, str(unknown)[:MAX_CUSTOM_ID_CHARS])
    custom_id = plain.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        text = f"must be a text of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        raise LineError(number, "missing_required_parameter", text, "custom_id")
    for name, wanted in (("method", "POST"), ("url", endpoint)):
        if plain.get(name) != wanted:
            raise LineError(number, f"invalid_{name}", f"must be {wanted!r}", name)
    body = plain.get("body")
    if not isinstance(body, dict):
        raise LineError(number, "missing_required_parameter", "must be a JSON object", "body")
    if body.get("stream"):
        raise LineError(
            number, "unsupported_parameter", "calls of a batch have no stream", "body.stream"
        )
    return BatchLine(number, custom_id, orjson.dumps(body), _user(body))


def _user(body: dict[str, Any]) -> str:
    """Return the user of a call as :mod:`~fairserve.platform.serving.decision.end_user` does."""
    metadata = body.get("metadata")
    of_metadata = metadata.get("user_id") if isinstance(metadata, dict) else None
    named = (body.get("user"), body.get("safety_identifier"), of_metadata)
    return next((each for each in named if each and isinstance(each, str)), "")


def check(
    pieces: Iterable[bytes], endpoint: str, max_lines: int, max_line_bytes: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of calls of a file, and its errors. Blocks.

    O(lines) memory: 16 bytes and a set's entry for each ``custom_id``.
    """
    seen: set[bytes] = set()
    total, errors = 0, []
    try:
        for number, raw in split(pieces, max_line_bytes):
            total += 1
            if total > max_lines:
                text = f"the file has over {max_lines:,} lines; split it into several"
                raise LineError(number, "too_many_tasks", text)
            try:
                line = parse(number, raw, endpoint)
                key = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
                if key in seen:
                    text = f"{line.custom_id!r} is the id of an earlier line, too"
                    raise LineError(number, "duplicate_custom_id", text, "custom_id")
                seen.add(key)
            except LineError as error:
                errors.append(error.plain)
                if len(errors) >= MAX_ERRORS:
                    break
        if not total:
            raise LineError(None, "empty_file", "the file has no lines")
    except LineError as error:
        errors.append(error.plain)
    return total, errors


def answer_line(batch_id: str, line: BatchLine, request_id: str, body: dict[str, Any]) -> bytes:
    """Return the line of the output file for an answer."""
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return _result(batch_id, line.number, line.custom_id, response, None)


def rejection_line(batch_id: str, line: BatchLine, request_id: str, error: FairServeError) -> bytes:
    """Return the line of the error file for a call that was answered with an error."""
    response = {"status_code": error.status, "request_id": request_id, "body": error.body()}
    return _result(batch_id, line.number, line.custom_id, response, None)


def unmade_line(batch_id: str, line: BatchLine, *, cancelled: bool) -> bytes:
    """Return the line of the error file for a call that has no result when its batch ends."""
    error = _CANCELLED if cancelled else _EXPIRED
    return _result(batch_id, line.number, line.custom_id, None, error)


def _result(
    batch_id: str,
    number: int,
    custom_id: str,
    response: dict[str, Any] | None,
    error: dict[str, Any] | None,
) -> bytes:
    return orjson.dumps(
        {
            "id": f"batch_req_{batch_id.removeprefix('batch_')}_{number}",
            "custom_id": custom_id,
            "response": response,
            "error": error,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
