"""Read an upload as it arrives: its fields, and the content of its one file in pieces.

The whole body is never in memory: the parser passes the content on piece by piece. Fields may come
before or after the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from fairserve.platform.base.errors import InvalidRequestError

MAX_FIELD_BYTES = 1024
MAX_PARTS = 8
MAX_HEAD_BYTES = 8 * 1024
"""Bytes of the headers of one part."""

Sink = Callable[[bytes], Awaitable[None]]
"""Takes the next piece of the file."""


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a Content-Type header names. Raises InvalidRequestError."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 200:
        raise InvalidRequestError(
            "the body must be multipart/form-data with a boundary, and the fields purpose and file",
            param="file",
        )
    return boundary


class Form:
    """The fields of a form, and the name of its file. The content goes to a sink."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        """None until the file has begun."""
        self._pieces: list[bytes] = []
        self._header = self._value = b""
        self._head_bytes = self._parts = 0
        self._headers: dict[bytes, bytes] = {}
        self._field: str | None = None
        """Name of the field that is read; None while the file is."""
        self._text = b""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_header,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._name_part,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def read(self, body: AsyncIterator[bytes], sink: Sink) -> None:
        """Read the whole body. Raises InvalidRequestError, and what ``sink`` raises."""
        async for data in body:
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise InvalidRequestError(
                    f"the body is not multipart/form-data: {error}"
                ) from error
            for piece in self._pieces:
                await sink(piece)
            self._pieces.clear()
        if not self._ended:
            raise InvalidRequestError("the body ends before its last boundary")
        if self.file_name is None:
            raise InvalidRequestError("file: the field is missing", param="file")

    # --- events of the parser ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts")
        self._headers, self._head_bytes = {}, 0

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += self._head(data, start, end)

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._head(data, start, end)

    def _head(self, data: bytes, start: int, end: int) -> bytes:
        self._head_bytes += end - start
        if self._head_bytes > MAX_HEAD_BYTES:
            raise InvalidRequestError(f"the headers of a part are over {MAX_HEAD_BYTES} bytes")
        return data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _name_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "file":
            if self.file_name is not None:
                raise InvalidRequestError("file: the form has two of them", param="file")
            self.file_name = options.get(b"filename", b"").decode("utf-8", "replace")
            self._field = None
        elif not name or name in self.fields:
            raise InvalidRequestError("each part of the form needs a name of its own")
        else:
            self._field, self._text = name[:MAX_FIELD_BYTES], b""

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._pieces.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise InvalidRequestError(
                f"{self._field}: over {MAX_FIELD_BYTES} bytes", param=self._field
            )

    def _end_part(self) -> None:
        if self._field is not None:
            self.fields[self._field] = self._text.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True
