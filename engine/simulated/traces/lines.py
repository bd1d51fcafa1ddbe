"""Numbered lines of a trace file, plain or gzip, and errors that name the line.

A file is gzip if it begins with gzip's magic bytes, whatever its name. A line checks its values, so
each error names file, line and allowed values. Blank lines are skipped but counted.

Weakness: lines are read one after another into Python objects, and a single line has no bound.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.engine.simulated.traces.model import TraceError

GZIP_MAGIC = b"\x1f\x8b"
GZIP_FORMAT = 31
"""Window option of zlib: the largest window, with gzip header and trailer."""
READ_BYTES = 1 << 16
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class TraceLine:
    """A line of a file; its checks raise `TraceError` that names it."""

    path: Path
    number: int
    text: str

    @property
    def origin(self) -> str:
        """Return file and line number, as used in error messages."""
        return f"{self.path}:{self.number}"

    def error(self, message: str) -> TraceError:
        """Return an error that names this line; the caller raises it."""
        return TraceError(f"{self.origin}: {message}")

    def json_object(self) -> dict[str, Any]:
        """Return the line as a JSON object."""
        try:
            value = json.loads(self.text)
        except json.JSONDecodeError as error:
            what = f"{error.msg} at character {error.pos + 1}"
            raise self.error(f"not JSON ({what}); one object a line is allowed") from None
        except (ValueError, RecursionError) as error:
            raise self.error(f"not JSON that can be read ({error})") from None
        if not isinstance(value, dict):
            raise self.error(f"expected a JSON object, got {shown(value)}")
        return value

    def columns(self, header: tuple[str, ...]) -> list[str]:
        """Return the line's comma-separated values, as many as the header has."""
        values = self.text.split(",")
        if len(values) != len(header):
            raise self.error(
                f"expected {len(header)} columns ({','.join(header)}), got {len(values)}"
            )
        return values

    def integer(self, value: object, name: str, least: int = 0) -> int:
        """Return a JSON integer of at least ``least``; true and false are not integers."""
        if type(value) is not int or value < least:
            raise self.error(f"{name} must be an integer of at least {least}, got {shown(value)}")
        return value

    def integer_text(self, value: str, name: str, least: int = 0) -> int:
        """Return an integer of at least ``least``, written in decimal digits."""
        try:
            number = int(value) if value.isascii() and value.isdigit() else least - 1
        except ValueError:  # more digits than Python converts
            number = least - 1
        if number < least:
            raise self.error(f"{name} must be an integer of at least {least}, got {shown(value)}")
        return number

    def number_at_least_zero(self, value: object, name: str) -> float:
        """Return a finite JSON number of at least 0, for example of seconds."""
        if type(value) is float or type(value) is int:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if 0 <= number < math.inf:
                return number
        raise self.error(f"{name} must be a finite number of at least 0, got {shown(value)}")

    def number_text(self, value: str, name: str) -> float:
        """Return a finite number of at least 0, written as text."""
        try:
            number: object = float(value)
        except ValueError:
            number = value
        return self.number_at_least_zero(number, name)

    def identifier(self, value: object, name: str) -> str:
        """Return a string that is not empty, or an integer, as a string."""
        if type(value) is int or (type(value) is str and value):
            return str(value)
        raise self.error(f"{name} must be a string or an integer, not empty, got {shown(value)}")


def shown(value: object) -> str:
    """Return a value for an error message: long ones are cut."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a very long number"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def read_lines(path: Path) -> Iterator[TraceLine]:
    """Yield the lines that are not blank, numbered from 1.

    Raises `TraceError` if the file cannot be opened, a gzip file is truncated or damaged, or a line
    is not UTF-8. The number is then that of the unreadable line.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            for number, data in enumerate(_data_lines(raw), start=1):
                text = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield TraceLine(path, number, text)
    except UnicodeDecodeError as error:
        raise TraceLine(path, number, "").error(f"not UTF-8 text ({error.reason})") from None
    except EOFError:
        raise TraceLine(path, number + 1, "").error(
            "the gzip data ends early; the file is truncated"
        ) from None
    except zlib.error as error:
        raise TraceLine(path, number + 1, "").error(f"damaged gzip data ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from None


def _data_lines(raw: io.BufferedReader) -> Iterator[bytes]:
    if raw.peek(2)[:2] != GZIP_MAGIC:
        yield from raw
        return
    begun = b""
    for chunk in _decompressed(raw):
        *whole, begun = (begun + chunk).split(b"\n")
        yield from whole
    if begun:
        yield begun


def _decompressed(raw: io.BufferedReader) -> Iterator[bytes]:
    """Yield the data of all gzip members; `EOFError` after the data of a truncated one.

    The standard library's reader fills its buffer before it returns a line, and so loses the lines
    before a truncation: the line number of the error would be wrong.
    """
    member = zlib.decompressobj(GZIP_FORMAT)
    while data := raw.read(READ_BYTES):
        while data:
            if member.eof:
                data = data.lstrip(b"\0")  # padding is allowed between members
                if not data:
                    break
                member = zlib.decompressobj(GZIP_FORMAT)
            yield member.decompress(data)
            data = member.unused_data
    if not member.eof:
        raise EOFError


def trace_name(path: Path) -> str:
    """Return the file's name without ``.gz`` and without ``.jsonl``, ``.json`` or ``.csv``."""
    name = path.name.removesuffix(".gz")
    return name.removesuffix(".jsonl").removesuffix(".json").removesuffix(".csv") or path.name
