"""Entries of Envoy's access log, and the file of ended calls that is read where an entry is lost."""

import json
from types import SimpleNamespace

import pytest
from scripted_envoy import USAGE, entry

from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.envoy.access_log import AccessLogService, attempt_of, ends_in, report_of
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.server.recovery import close_open_calls
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.throttling.quotas.price import TokenPrice

ANSWER = {
    "started": True,
    "complete": True,
    "first_output_ms": 1_000_500,
    "tool_calls": True,
    **USAGE,
}
LINE = {
    "call": "a",
    "began": "1000.25",
    "duration_ms": 2000,
    "status": 200,
    "flags": "-",
    "answer": ANSWER,
}


def write(path, *lines):
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
    return path


def test_an_entry_and_a_line_of_the_file_say_the_same(tmp_path):
    found = report_of(entry("a", pb.DOWNSTREAM_END, (), 200, ANSWER), "a")
    line = ends_in(write(tmp_path / "ends", LINE))["a"]
    assert line.ended_at == 1002.25
    for name in ("totals", "complete", "started", "first_output_at", "requested_tools", "status"):
        assert getattr(found, name) == getattr(line, name), name
    assert (found.totals.prompt_tokens, found.totals.output_tokens) == (12, 3)
    assert (found.totals.cached_tokens, found.first_output_at) == (4, 1000.5)


def test_an_entry_of_a_running_call_is_no_end():
    assert not report_of(entry("a", pb.DOWNSTREAM_PERIODIC, (), 200, ANSWER), "a").ended


@pytest.mark.parametrize("flags", ["DC", "UC,DC", "DR"])
def test_a_line_shows_that_the_client_left(tmp_path, flags):
    line = {**LINE, "flags": flags, "answer": None}
    report = ends_in(write(tmp_path / "ends", line))["a"]
    assert report.client_left
    assert (report.complete, report.started) == (False, False)


def test_damaged_lines_are_skipped_and_the_file_before_is_read(tmp_path):
    path = tmp_path / "ends"
    write(tmp_path / "ends.1", {**LINE, "call": "before"}, {**LINE, "call": "a", "status": 503})
    write(path, LINE, ["no object"])
    path.write_bytes(path.read_bytes() + b'{"call": "torn')
    found = ends_in(path)
    assert set(found) == {"before", "a"}
    assert found["a"].status == 200
    assert set(ends_in(path, {"before"})) == {"before"}
    assert ends_in(tmp_path / "none") == {}


@pytest.mark.parametrize("value", [-1, 1e300, "3", None, float("nan")])
def test_numbers_that_no_worker_can_mean_are_ignored(value):
    found = entry("a", pb.DOWNSTREAM_END, (), 200, {"started": True})
    metadata = found.common_properties.metadata.filter_metadata["fairserve.answer"]
    metadata.update({"output_tokens": value})
    assert report_of(found, "a").totals.output_tokens is None


def attempt(*flags, status=0, address="127.0.0.1"):
    found = entry("a", pb.UPSTREAM_END, flags, status, {})
    if address:
        found.common_properties.upstream_remote_address.socket_address.address = address
    return attempt_of(found, "a")


def test_attempts_of_the_relay_are_no_attempts_at_a_worker():
    assert attempt(status=502, address="") is None
    assert attempt(status=502).status == 502
    assert attempt("upstream_connection_failure", address="").unreachable


def timed(record, kind=pb.DOWNSTREAM_END, **after_s):
    """Return an entry of a call that began at 1000 s; ``after_s`` are fields of its times."""
    found = entry(record, kind, (), 200, ANSWER)
    found.common_properties.start_time.FromMilliseconds(1_000_000)
    for name, seconds in after_s.items():
        getattr(found.common_properties, name).FromMilliseconds(round(seconds * 1000))
    return found


async def end_delays(*entries, now_s=1002.0):
    """Return the delays of ends in a log with these entries, and the records of the ended calls."""
    delays, ended = [], []

    async def end(report):
        ended.append(report.record_id)

    def get(record):
        if record == "unknown":
            return None
        return SimpleNamespace(record_id=record, end=end, progress=lambda report: None)

    async def messages():
        for each in entries:
            message = pb.StreamAccessLogsMessage()
            message.http_logs.log_entry.append(each)
            yield message

    service = AccessLogService(SimpleNamespace(get=get), delays.append, lambda: now_s)
    await service.stream(messages(), None)
    return pytest.approx(delays), ended


async def test_the_delay_of_an_end_counts_from_the_last_byte_to_the_client():
    sent = timed("sent", time_to_last_downstream_tx_byte=1.985, duration=1.5)
    assert await end_delays(sent) == ([0.015], ["sent"])
    assert await end_delays(timed("nothing sent", duration=1.75)) == ([0.25], ["nothing sent"])


async def test_a_clock_that_was_set_back_makes_no_negative_delay():
    assert await end_delays(timed("a", duration=1.0), now_s=1000.5) == ([0.0], ["a"])


async def test_only_ends_of_open_calls_have_a_delay():
    """An entry without times has none, but ends its call."""
    progress = timed("a", pb.DOWNSTREAM_PERIODIC, duration=1.0)
    others = (progress, timed("unknown", duration=1.0), entry("b", pb.DOWNSTREAM_END, (), 200, {}))
    assert await end_delays(*others) == ([], ["b"])


def accepted(key, **changes):
    row = {
        "call_id": key,
        "tenant": "t",
        "app": "app",
        "user": "u",
        "model": "m",
        "interaction_id": "run",
        "stage": 1,
        "agent": None,
        "outcome": "failed",
        "accepted_at": 1000.0,
        "ended_at": 1000.0,
        "served_model": "m",
    }
    return {**row, **changes}


def test_a_start_completes_the_calls_that_the_file_has_as_complete(tmp_path):
    """Others have failed with their last progress, whatever the file says of them."""
    journal = Journal(tmp_path / "journal", segment_bytes=1 << 20, max_bytes=1 << 20)
    journal.open()
    for key in ("a", "b", "c"):
        journal.append("accepted", key, accepted(key))
    progress = {"input_tokens": 8, "system_tokens": 4, "output_tokens": 1, "worker": "w0"}
    for key in ("a", "b"):
        journal.append("progress", key, progress)
    journal.close()
    lines = (LINE, {**LINE, "call": "b", "flags": "DC", "answer": {**ANSWER, "complete": False}})
    ends = ends_in(write(tmp_path / "ends", *lines))
    closed = {}

    class Kept(Journal):
        def append(self, kind, key, data):
            closed[key] = data
            return super().append(kind, key, data)

    again = Kept(tmp_path / "journal", segment_bytes=1 << 20, max_bytes=1 << 20)
    prices = PriceBook([("m", 0.0, TokenPrice(1000, 500, 2000, "price"))])
    close_open_calls(again, ends, prices)
    again.close()
    whole = closed["a"]
    assert (whole["outcome"], whole["error"], whole["worker"]) == ("completed", "", "w0")
    assert (whole["input_tokens"], whole["system_tokens"], whole["output_tokens"]) == (8, 4, 3)
    assert (whole["cached_tokens"], whole["extend_tokens"]) == (4, 8)
    assert (whole["ended_at"], whole["duration_s"], whole["ttft_s"]) == (1002.25, 2.25, 0.5)
    assert (whole["price_id"], whole["wasted"]) == ("price", False)
    assert whole["cost"] == prices.at("m", 1000.0).cost(_usage(8, 4, 4, 3)) > 0
    assert (closed["b"]["outcome"], closed["b"]["output_tokens"]) == ("failed", 1)
    assert (closed["c"]["outcome"], closed["c"]["error"]) == ("failed", "server stopped")


def _usage(*numbers):
    from fairserve.interactions.call import TokenUsage

    return TokenUsage(*numbers)
