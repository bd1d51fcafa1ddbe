"""Log lines: one per event, in two formats, without keys, and written by a thread that never blocks."""

import contextvars
import io
import json
import logging
import sys
import threading

import pytest

from fairserve.platform.base.request_facts import begin_request
from fairserve.platform.server import logs
from fairserve.platform.server.logs import FORMATTERS, JsonFormatter, LogWriter, TextFormatter

KEY = "sk-fs-t-" + "a1-B" * 10


def record(message, *args, exc_info=None, **fields):
    found = logging.LogRecord("fairserve.x", logging.WARNING, "", 0, message, args, exc_info)
    found.created, found.request_id, found.fields = 1_700_000_000.5, "call_1", fields
    return found


def test_a_text_line_has_everything():
    line = TextFormatter().format(record("worker %s fails", "w0", status=500, cause="a b"))
    assert line == (
        "2023-11-14T22:13:20.500Z WARNING fairserve.x [call_1]: worker w0 fails"
        ' status=500 cause="a b"'
    )


def test_a_json_line_has_everything():
    line = JsonFormatter().format(record("worker %s fails", "w0", status=500, level="no"))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "warning",
        "logger": "fairserve.x",
        "message": "worker w0 fails",
        "request_id": "call_1",
        "status": 500,
    }


@pytest.mark.parametrize("log_format", FORMATTERS)
def test_nothing_in_an_event_begins_another_line_or_shows_a_key(log_format):
    try:
        raise ValueError(f"of\n{KEY}")
    except ValueError:
        trace = sys.exc_info()
    event = record("a\r\nb\u2028c %s", KEY, exc_info=trace, path="/x\nERROR y", key=KEY)
    line = FORMATTERS[log_format]().format(event)
    assert len(line.splitlines()) == 1
    assert "Traceback" in line
    assert KEY not in line
    assert line.count("[key]") == 3  # message, field, text of the error


def test_a_line_carries_the_id_of_its_request():
    stream = io.StringIO()
    writer = LogWriter(stream, JsonFormatter())

    def request():
        begin_request("req_7")
        writer.handle(record("x"))

    contextvars.copy_context().run(request)
    writer.close()
    assert json.loads(stream.getvalue())["request_id"] == "req_7"


class SlowStream(io.StringIO):
    """A stream whose reader is slow."""

    def __init__(self):
        super().__init__()
        self.reads = threading.Event()

    def write(self, text):
        assert self.reads.wait(60)
        return super().write(text)


def test_a_slow_reader_blocks_nobody_and_learns_what_was_dropped(monkeypatch):
    monkeypatch.setattr(logs, "MAX_WAITING", 5)
    stream = SlowStream()
    writer = LogWriter(stream, TextFormatter())
    for number in range(100):
        writer.handle(record(f"line {number}"))
    stream.reads.set()
    writer.close()
    lines = stream.getvalue().splitlines()
    (lost,) = [line for line in lines if "were dropped" in line]
    assert int(lost.split(": ")[1].split()[0]) + len(lines) - 1 == 100
    assert len(lines) <= 5 + 3


def test_a_reader_that_left_is_no_error(capsys):
    stream = io.StringIO()
    stream.close()
    writer = LogWriter(stream, TextFormatter())
    writer.handle(record("x"))
    writer.close()
    assert capsys.readouterr().err == ""
