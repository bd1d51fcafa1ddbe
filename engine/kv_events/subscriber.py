"""Follows the KV events of one endpoint of a worker over ZMQ in an asyncio loop.

Batches are ordered by :class:`~fairserve.engine.kv_events.sequence.KvSequence` and translated by
:class:`~fairserve.engine.kv_events.view.KvView`; the reports go to ``post``. The sockets are read
in the loop's readiness callbacks, without a task: about 20 us per message that changes nothing. A
broken connection is replaced by a new socket, so that no batch of an earlier generation of the
worker is read after the first of a later one. Each connection requests a replay, since batches may
have been missed.

Weakness: a worker without a replay endpoint is followed completely only if its first batch is
received; a lost batch is noticed when the next one arrives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events.dialect import KvEventsError
from fairserve.engine.kv_events.sequence import Ask, Begin, KvSequence, Step
from fairserve.engine.kv_events.view import KvView
from fairserve.engine.wire.base import KvEndpoints
from fairserve.scheduling.events import CacheReport, WorkerCacheReset

_log = logging.getLogger(__name__)

REPLAY_S = 5.0
"""Seconds without an answer after which a replay is requested again."""
REPLAY_TRIES = 6
CHECK_S = 1.0
"""Seconds from a connection to a second replay, for batches published before the worker received
the subscription."""
AGAIN_S = 0.1
"""Seconds before a broken connection is replaced."""
LOST_S = 10.0
"""Seconds without a connection after which the view is dropped."""
GIVEN_UP_S = 30.0
"""Seconds after which an unanswered replay is tried over a new connection."""
HIGH_WATER_MARK = 10_000
"""Number of batches that may wait for this loop before some are lost and requested again."""
MESSAGES_A_TURN = 64
"""Number of messages after which other tasks of the loop run."""


@dataclass(slots=True)
class KvStats:
    """Counters of a worker's events, as shown on status pages."""

    connected: bool = False
    complete: bool | None = None
    """True if the view contains the worker's whole cache; None before the first report."""
    events: int = 0
    last_sequence: int | None = None
    """Number of the last batch; None also for several endpoints together."""
    gaps: int = 0
    restarts: int = 0
    resets: int = 0
    """Number of times that the view was dropped after its start."""
    unreadable: int = 0
    blocks: int = 0
    """Number of the worker's blocks in the view."""
    left_out: int = 0
    """Number of stored blocks without a router key."""


def combined(parts: Sequence[KvStats]) -> KvStats | None:
    """Return the counters of a worker with several endpoints; None without an endpoint."""
    if len(parts) < 2:
        return parts[0] if parts else None
    complete = [each.complete for each in parts]
    counts = ("events", "gaps", "restarts", "resets", "unreadable", "blocks", "left_out")
    return KvStats(
        connected=all(each.connected for each in parts),
        complete=None if None in complete else all(complete),
        **{name: sum(getattr(each, name) for each in parts) for name in counts},
    )


class KvSubscriber:
    """Subscriber to one endpoint. Belongs to one event loop; ``start`` once, then ``close``."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoints: KvEndpoints,
        view: KvView,
        post: Callable[[CacheReport], None],
        *,
        replay_s: float = REPLAY_S,
    ) -> None:
        self._context = context
        self._endpoints = endpoints
        self._view = view
        self._post = post
        self._replay_s = replay_s
        self._sequence = KvSequence()
        self._stats = KvStats()
        self._loop = asyncio.get_running_loop()
        self._events: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._asked = 0
        self._tries = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._lost: asyncio.TimerHandle | None = None
        self._check: asyncio.TimerHandle | None = None

    @property
    def stats(self) -> KvStats:
        """Return the current counters."""
        stats, sequence = self._stats, self._sequence
        stats.last_sequence = sequence.next - 1 if sequence.next else None
        stats.gaps, stats.restarts = sequence.gaps, sequence.restarts
        stats.blocks, stats.left_out = len(self._view), self._view.left_out
        return stats

    def start(self) -> None:
        """Connect now, or when the worker starts to listen."""
        self._again = None
        self._disconnect()
        events = self._events = self._context.socket(zmq.SUB)
        events.set_hwm(HIGH_WATER_MARK)
        events.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        events.setsockopt(zmq.IPV6, 1)
        events.setsockopt(zmq.SUBSCRIBE, b"")
        self._monitor = events.get_monitor_socket(
            zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        )
        events.connect(self._endpoints.events)
        self._watch(events)
        self._watch(self._monitor)
        if self._lost is None:
            self._lost = self._loop.call_later(LOST_S, self._forget)
        self._read()

    def close(self) -> None:
        """Disconnect and post nothing more. May be repeated."""
        for timer in (self._again, self._lost, self._check):
            if timer is not None:
                timer.cancel()
        self._end_replay()
        self._disconnect()

    def _check_later(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = self._loop.call_later(CHECK_S, self._check_again)

    def _check_again(self) -> None:
        if self._sequence.replaying:
            self._check_later()
        elif self._stats.connected:
            self._do(self._sequence.check())

    def _forget(self) -> None:
        self._lost = None
        _log.warning("%s: no connection for %g s", self._endpoints.events, LOST_S)
        self._end_replay()
        self._do(self._sequence.lost())

    def _connect_again(self, later_s: float) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(later_s, self.start)

    def _disconnect(self) -> None:
        self._stats.connected = False
        if self._events is not None:
            self._events.disable_monitor()
        for each in (self._events, self._monitor):
            if each is not None:
                self._loop.remove_reader(each.fileno())
                each.close(linger=0)
        self._events = self._monitor = None

    # --- sockets ----------------------------------------------------------------------------------

    def _watch(self, watched: zmq.Socket[bytes]) -> None:
        self._loop.add_reader(watched.fileno(), self._read)

    def _read(self) -> None:
        """Read all messages that have arrived, since ZMQ signals changes only."""
        for _ in range(MESSAGES_A_TURN):
            if self._events is None or not self._read_one():
                return
        self._loop.call_soon(self._read)

    def _read_one(self) -> bool:
        """Read one message; connection events first, since a batch may be the first after a restart."""
        assert self._monitor is not None
        assert self._events is not None
        if _readable(self._monitor):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._stats.connected = True
                if self._lost is not None:
                    self._lost.cancel()
                    self._lost = None
                self._do(self._sequence.connected())
                if self._endpoints.replay:
                    self._check_later()
            else:
                self._disconnect()
                if self._lost is None:
                    self._lost = self._loop.call_later(LOST_S, self._forget)
                self._connect_again(AGAIN_S)
        elif self._replay is not None and _readable(self._replay):
            self._take_frames(self._replay.recv_multipart(zmq.NOBLOCK), self._replayed)
        elif _readable(self._events):
            self._take_frames(self._events.recv_multipart(zmq.NOBLOCK), self._sequence.live)
        else:
            return False
        return True

    def _take_frames(self, frames: list[bytes], take: Callable[[int, bytes], list[Step]]) -> None:
        try:
            sequence, payload = dialect.read(frames)
        except KvEventsError as error:
            _log.warning("%s: %s", self._endpoints.events, error)
            self._stats.unreadable += 1
            return
        self._do(take(sequence, payload))

    # --- replays ----------------------------------------------------------------------------------

    def _ask(self, start: int) -> None:
        """Request a replay over a separate connection, apart from answers to earlier requests."""
        self._end_replay()
        if not self._endpoints.replay:
            self._do(self._sequence.failed())
            return
        self._asked = start
        asking = self._replay = self._context.socket(zmq.DEALER)
        asking.set_hwm(HIGH_WATER_MARK)
        asking.setsockopt(zmq.IPV6, 1)
        asking.connect(self._endpoints.replay)
        asking.send_multipart(dialect.replay_request(start), zmq.NOBLOCK)
        self._watch(asking)
        self._set_deadline()
        self._loop.call_soon(self._read)

    def _replayed(self, sequence: int, payload: bytes) -> list[Step]:
        if sequence == dialect.END:
            self._end_replay()
            self._tries = 0
            return self._sequence.ended()
        self._set_deadline()
        return self._sequence.replayed(sequence, payload)

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(self._replay_s, self._late)

    def _late(self) -> None:
        """Request the replay again, or give it up if it no longer answers."""
        self._tries += 1
        if self._tries < REPLAY_TRIES:
            self._ask(self._asked)
            return
        _log.warning("%s answers no replays", self._endpoints.replay)
        self._tries = 0
        self._end_replay()
        self._do(self._sequence.failed())
        self._connect_again(GIVEN_UP_S)

    def _end_replay(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._replay is not None:
            self._loop.remove_reader(self._replay.fileno())
            self._replay.close(linger=0)
            self._replay = None

    # --- steps ------------------------------------------------------------------------------------

    def _do(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Ask):
                self._ask(step.start)
            elif isinstance(step, Begin):
                self._post_all(self._view.begin(complete=step.complete))
            else:
                self._apply(step.payload)

    def _apply(self, payload: bytes) -> None:
        try:
            events = dialect.decode(payload).events
        except KvEventsError as error:
            _log.warning("%s: %s", self._endpoints.events, error)
            self._stats.unreadable += 1
            if self._stats.complete or len(self._view):
                self._post_all(self._view.begin(complete=False))
            return
        self._stats.events += len(events)
        self._post_all(self._view.apply(events))

    def _post_all(self, reports: list[CacheReport]) -> None:
        for report in reports:
            if isinstance(report, WorkerCacheReset):
                self._stats.resets += self._stats.complete is not None
                self._stats.complete = report.complete
            self._post(report)


def _readable(read: zmq.Socket[bytes]) -> bool:
    return bool(cast("int", read.get(zmq.EVENTS)) & zmq.POLLIN)
