"""Envoy's access log: entries that it sends while calls run and end, and the file of the ended ones.

The service (AccessLogService) gets the entries of calls and of failed attempts, in the order of each of
Envoy's threads. The file has one line for each ended call. It is read where no entry arrived: when a
call's stream ended without one, and at the start of the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from fairserve.platform.envoy.access_log_configuration import (
    ANSWER,
    ATTEMPTS_LOG,
    CALL_HEADER,
    RETRY_AFTER,
)
from fairserve.platform.envoy.open_calls import Attempt, CallReport, OpenCalls
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.serving.completions.usage import AnswerTotals

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024
"""Longest line of the file that is read; ours have a few hundred bytes."""
END_DELAY_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Upper bounds of the buckets of :func:`end_delay_s`, fine around ``FLUSH_S`` and twice of it."""
_CLIENT_LEFT = ("downstream_connection_termination", "downstream_remote_reset")
_CLIENT_LEFT_SHORT = frozenset({"DC", "DR"})
_UNREACHABLE = ("upstream_connection_failure", "no_healthy_upstream", "upstream_overflow")


class AccessLogService:
    """Envoy's service of the same name, for the calls of one server."""

    def __init__(
        self,
        calls: OpenCalls,
        on_end_delay: Callable[[float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``on_end_delay`` receives the delay of each end in seconds; ``clock`` is the wall clock."""
        self._calls = calls
        self._on_end_delay = on_end_delay
        self._clock = clock

    async def stream(
        self, messages: AsyncIterator[pb.StreamAccessLogsMessage], context: object
    ) -> pb.StreamAccessLogsResponse:
        """Read the entries of one log and thread until Envoy ends the stream."""
        name = ""
        async for message in messages:
            name = message.identifier.log_name or name
            for entry in message.http_logs.log_entry:
                try:
                    await self._read(name, entry)
                except Exception:  # one entry must not end the log of all other calls
                    logger.exception("an entry of Envoy's access log was not read")
        return pb.StreamAccessLogsResponse()

    async def _read(self, name: str, entry: pb.HTTPAccessLogEntry) -> None:
        call = self._calls.get(entry.request.request_headers.get(CALL_HEADER, ""))
        if call is None:
            return
        if name == ATTEMPTS_LOG:
            attempt = attempt_of(entry, call.record_id)
            if attempt is not None:
                call.attempt_ended(attempt)
            return
        report = report_of(entry, call.record_id)
        if report.ended:
            delay_s = end_delay_s(entry, self._clock())
            if delay_s is not None:
                self._on_end_delay(delay_s)
            await call.end(report)
        else:
            call.progress(report)


def attempt_of(entry: pb.HTTPAccessLogEntry, record_id: str) -> Attempt | None:
    """Return the end of a failed attempt at a worker; None: at the relay, which is a Unix socket."""
    common = entry.common_properties
    if not common.upstream_remote_address.HasField("socket_address") and not _unreachable(entry):
        return None
    return Attempt(
        record_id,
        status=entry.response.response_code.value,
        unreachable=_unreachable(entry),
        retry_after=entry.response.response_headers.get(RETRY_AFTER, ""),
        reason=_reason(common.upstream_transport_failure_reason, _names(common.response_flags)),
    )


def report_of(entry: pb.HTTPAccessLogEntry, record_id: str) -> CallReport:
    """Return what an entry says about a call."""
    common, flags = entry.common_properties, entry.common_properties.response_flags
    metadata = common.metadata.filter_metadata
    answer = dict(metadata[ANSWER].items()) if ANSWER in metadata else {}
    reason = _reason(common.upstream_transport_failure_reason, _names(flags))
    return _report(
        record_id,
        answer,
        ended=common.access_log_type == pb.DOWNSTREAM_END,
        client_left=any(getattr(flags, name) for name in _CLIENT_LEFT),
        reason=reason,
        status=entry.response.response_code.value,
    )


def end_delay_s(entry: pb.HTTPAccessLogEntry, now_s: float) -> float | None:
    """Return the seconds since Envoy sent the client the last byte; None: the entry has no times.

    Where the client was sent nothing, they count from the end of the request. ``now_s`` is UTC epoch
    seconds by the clock of the same machine; if it was set back since, the delay is 0.
    """
    common = entry.common_properties
    if not common.HasField("start_time"):
        return None
    sent_after = common.duration
    if common.HasField("time_to_last_downstream_tx_byte"):
        sent_after = common.time_to_last_downstream_tx_byte
    sent_s: float = (common.start_time.ToNanoseconds() + sent_after.ToNanoseconds()) / 1e9
    return max(0.0, now_s - sent_s)


def ends_in(path: Path, wanted: Collection[str] | None = None) -> dict[str, CallReport]:
    """Return the ends of calls in the file and in the one before it, by record id. Blocks.

    ``wanted`` are the ids to look for; None: all. Raises OSError if a file cannot be read.
    """
    found: dict[str, CallReport] = {}
    for each in (path.with_name(path.name + ".1"), path):
        for line in _lines(each):
            record_id = line.get("call")
            if isinstance(record_id, str) and (wanted is None or record_id in wanted):
                found[record_id] = _report_of_line(record_id, line)
    return found


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a file that are objects; a torn or damaged line is skipped."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                parsed = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(parsed, dict):
                yield parsed


def _report_of_line(record_id: str, line: Mapping[str, Any]) -> CallReport:
    answer = line.get("answer")
    flags = str(line.get("flags") or "")
    status = line.get("status")
    return _report(
        record_id,
        answer if isinstance(answer, dict) else {},
        ended=True,
        client_left=not _CLIENT_LEFT_SHORT.isdisjoint(flags.split(",")),
        reason=_reason("", "" if flags == "-" else flags),
        status=status if isinstance(status, int) else 0,
        ended_at=_ended_at(line),
    )


def _report(
    record_id: str,
    answer: Mapping[str, Any],
    *,
    ended: bool,
    client_left: bool,
    reason: str,
    status: int,
    ended_at: float | None = None,
) -> CallReport:
    first_ms = answer.get("first_output_ms")
    started = answer.get("started") is True
    return CallReport(
        record_id,
        ended=ended,
        totals=AnswerTotals(
            prompt_tokens=_whole(answer, "prompt_tokens"),
            output_tokens=_whole(answer, "output_tokens"),
            cached_tokens=_whole(answer, "cached_tokens"),
            chunks=_whole(answer, "chunks") or 0,
            output_bytes=_whole(answer, "output_bytes") or 0,
        ),
        started=started,
        complete=answer.get("complete") is True,
        client_left=client_left,
        first_output_at=first_ms / 1000 if isinstance(first_ms, int | float) else None,
        requested_tools=answer.get("tool_calls") is True,
        error=str(answer.get("error") or ""),
        rejected=answer.get("rejected") is True,
        broken=reason or "its answer broke off",
        status=status,
        ended_at=ended_at,
    )


def _ended_at(line: Mapping[str, Any]) -> float | None:
    try:
        return float(line["began"]) + float(line["duration_ms"]) / 1000
    except (KeyError, TypeError, ValueError):
        return None


def _whole(answer: Mapping[str, Any], name: str) -> int | None:
    """Return a number of tokens or bytes; Envoy stores all numbers as floating point."""
    value = answer.get(name)
    if not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        return None
    return int(value)


def _unreachable(entry: pb.HTTPAccessLogEntry) -> bool:
    flags = entry.common_properties.response_flags
    return any(getattr(flags, name) for name in _UNREACHABLE)


def _names(flags: pb.ResponseFlags) -> str:
    return ", ".join(field.name for field, value in flags.ListFields() if value)


def _reason(transport: str, flags: str) -> str:
    return ": ".join(part for part in (flags.replace("_", " "), transport) if part)
