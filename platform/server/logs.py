"""Logs of the server process: one line per event on standard error, as text or as JSON.

A line has the time (UTC), level, logger, message, and the id of the request in progress; fields that a
call of the logger passes as ``extra={"fields": {...}}`` follow. Line breaks are escaped and API keys
are masked, whatever a message holds. A thread formats and writes, because a slow reader of standard
error must not block the event loop.

Weakness: while nobody reads, lines beyond ``MAX_WAITING`` are dropped, and their number is logged later.
The last lines before a kill may be missing.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import TextIO

from fairserve.platform.base.request_facts import current_request_id
from fairserve.platform.server.settings import LogFormat

MAX_WAITING = 10_000
"""Records that wait for the writer."""
GATHER_S = 0.02
"""Pause after the first record, in which the writer collects more."""
CLOSE_S = 2.0
"""Longest wait for the last lines at the end, in seconds."""

_KEY = re.compile(r"sk-fs-[a-z]-[\w-]{8,}")
_PLAIN = re.compile(r"[\w./:@+,~*%()\[\]-]+")
"""Values that a text line shows without quotation marks."""


class TextFormatter(logging.Formatter):
    """Returns lines for people: time, level, logger, request id in brackets, message, ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without API keys."""
        head = f"{_time(record)} {record.levelname} {record.name}"
        request_id = _request_id(record)
        if request_id:
            head += f" [{request_id}]"
        parts = [f"{head}: {_escaped(record.getMessage())}"]
        parts += [f"{name}={_text(value)}" for name, value in _fields(record).items()]
        if record.exc_info:
            parts.append(_escaped(self.formatException(record.exc_info)))
        return _masked(" ".join(parts))


class JsonFormatter(logging.Formatter):
    """Returns lines for collectors: one JSON object each, with the fields beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without API keys."""
        found: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := _request_id(record):
            found["request_id"] = request_id
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        found = {**found, **{k: v for k, v in _fields(record).items() if k not in found}}
        return _masked(json.dumps(found, default=str))


FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}


class LogWriter(logging.Handler):
    """Writes records to a stream, in a thread. Bounded."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream
        # Also safe in a signal handler, which may interrupt another put.
        self._records: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._dropped = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record together with the id of its request."""
        if self._records.qsize() >= MAX_WAITING:
            self._dropped += 1
            return
        record.request_id = current_request_id()
        self._records.put(record)

    def close(self) -> None:
        """Write the waiting records, for ``CLOSE_S`` at most."""
        self._closing.set()
        self._records.put(None)
        self._thread.join(CLOSE_S)
        super().close()

    def _write_all(self) -> None:
        while (record := self._records.get()) is not None:
            # Otherwise this thread would compete with the event loop at every line.
            self._closing.wait(GATHER_S)
            self._write(record)
            for _ in range(self._records.qsize()):
                record = self._records.get()
                if record is None:
                    self._records.put(None)
                    break
                self._write(record)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                text = f"{dropped} log lines were dropped: nobody reads them fast enough"
                self._write(logging.makeLogRecord({"name": __name__, "msg": text}))
            self._flush()

    def _write(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write(self.format(record) + "\n")
        except (OSError, ValueError):  # nobody reads any more
            return
        except Exception:
            self.handleError(record)

    def _flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


def reload_logging(level: str, log_format: LogFormat) -> None:
    """Use another level and form of lines, unless the program around this one has its own log."""
    root = logging.getLogger()
    writers = [handler for handler in root.handlers if isinstance(handler, LogWriter)]
    for writer in writers:
        writer.setFormatter(FORMATTERS[log_format]())
    if writers:
        root.setLevel(level.upper())


@contextmanager
def logging_to(stream: TextIO, level: str, log_format: LogFormat) -> Iterator[None]:
    """Log to ``stream`` within the block, unless the program around this one has set up its own log.

    Records then have no place in the code, thread or process, which no line shows.
    """
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    source = logging._srcfile
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    writer = LogWriter(stream, FORMATTERS[log_format]())
    before = root.level
    root.addHandler(writer)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(writer)
        root.setLevel(before)
        writer.close()
        logging._srcfile = source
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = True


def _masked(line: str) -> str:
    return _KEY.sub("[key]", line)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _request_id(record: logging.LogRecord) -> str:
    return str(getattr(record, "request_id", ""))


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _text(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _escaped(text: str) -> str:
    """Return a text on one line: a line break in it must not look like another event."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
