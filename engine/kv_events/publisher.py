"""Publishes the changes of a worker's prefix cache over ZMQ, from a separate thread.

The engine's thread puts the changes of a step into a bounded queue and continues. This thread
converts them to events, numbers and publishes the batches, and keeps them for replays
(:mod:`fairserve.engine.kv_events.replay`). A slow reader loses batches, detects the gap and
requests a replay. If this thread is too slow for the engine, ``put`` returns False and the engine
later publishes the state of its whole cache.

Weakness: prompts pass through these sockets unencrypted, as token ids, with their salts. Use a Unix
socket in a private folder, the loopback interface, or a private network.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import zmq

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events.dialect import KvBatch, KvEvent, KvEventsError
from fairserve.engine.kv_events.replay import ReplayBuffer

_log = logging.getLogger(__name__)

Change = TypeVar("Change")

MAX_QUEUED_STEPS = 1024
"""Maximum number of steps in the queue."""


@dataclass(frozen=True, slots=True)
class KvPublisherOptions:
    """Endpoints and bounds. ``tcp://HOST:0`` uses a free port, ``ipc://FOLDER/*`` a generated name."""

    endpoint: str
    replay_endpoint: str = ""
    """Endpoint of replays; empty: no replays."""
    buffer_steps: int = 1000
    """Number of batches kept for replays; older ones are merged into one."""
    high_water_mark: int = 10_000
    """Number of batches that may wait for one slow reader before it loses some."""

    def __post_init__(self) -> None:
        for name in ("buffer_steps", "high_water_mark"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


class KvPublisher(Generic[Change]):
    """Publisher of one worker. Call ``put`` from one thread, ``start`` and ``close`` from another."""

    def __init__(
        self, options: KvPublisherOptions, events: Callable[[Sequence[Change]], list[KvEvent]]
    ) -> None:
        """Bind the sockets. ``events`` is called in the publisher's thread.

        Raises ValueError for an endpoint that cannot be bound.
        """
        self._events = events
        self._queue: deque[Sequence[Change]] = deque()
        self._broken = False
        """True if changes were lost: the next ``put`` returns False once."""
        self._closing = False
        self._buffer = ReplayBuffer(options.buffer_steps)
        self.batches = 0
        """Number of published batches, which is the next sequence number."""
        self.overflows = 0
        """Number of times that the state of the whole cache had to be published again."""
        self._context = zmq.Context()
        self._published = self._context.socket(zmq.PUB)
        self._replays: zmq.Socket[bytes] | None = None
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        try:
            self._published.set_hwm(options.high_water_mark)
            self.endpoint = _bind(self._published, options.endpoint, "events")
            self.replay_endpoint = ""
            if options.replay_endpoint:
                self._replays = self._context.socket(zmq.ROUTER)
                # A whole replay must fit, or its end would be lost.
                self._replays.set_hwm(options.buffer_steps + 2)
                self._replays.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.replay_endpoint = _bind(self._replays, options.replay_endpoint, "replays")
        except BaseException:
            self._free()
            raise
        self._thread = threading.Thread(target=self._main, name="kv events", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def put(self, changes: Sequence[Change]) -> bool:
        """Queue the changes of one step. Return False, and queue nothing, if the queue is full.

        Never blocks; takes about two microseconds. Without changes it only checks the queue.
        """
        if self._broken:
            self._broken = False
            self.overflows += 1
            return False
        if self._closing or len(self._queue) >= MAX_QUEUED_STEPS:
            self.overflows += bool(changes)
            return False
        if changes:
            self._queue.append(changes)
            self._ring()
        return True

    def close(self) -> None:
        """Publish the queued steps, stop the thread and close the sockets. May be repeated."""
        self._closing = True
        if self._thread.ident is None:
            self._free()
            return
        self._ring()
        self._thread.join()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: the thread is awake; closed: it has ended
            self._wake.send(b"\0")

    # --- the thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replays is not None:
            poller.register(self._replays, zmq.POLLIN)
        try:
            while not (self._closing and not self._queue):
                ready = dict(poller.poll())
                if self._woken.fileno() in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                self._publish_queued()
                if self._replays in ready:
                    self._answer()
        except Exception:
            _log.exception("KV events are no longer published")
        finally:
            self._closing = True
            self._free()

    def _publish_queued(self) -> None:
        while self._queue:
            changes = self._queue.popleft()
            try:
                events = self._events(changes)
            except Exception:
                # Names are missing: the state of the whole cache must be published again.
                _log.exception("KV events of a step are lost")
                self._queue.clear()
                self._broken = True
                return
            payload = dialect.encode(KvBatch(time.time(), events))
            sequence = self.batches
            self.batches += 1
            # Reading its state makes the socket accept new subscriptions, which a send alone may
            # delay by a millisecond: a reader whose replay was just served would miss this batch.
            self._published.get(zmq.EVENTS)
            self._published.send_multipart(dialect.message(sequence, payload))
            self._buffer.append(sequence, payload)

    def _answer(self) -> None:
        """Send the batches that one reader requests; a slow or disconnected reader loses them."""
        assert self._replays is not None
        identity, *frames = self._replays.recv_multipart()
        try:
            for sequence, payload in self._buffer.since(dialect.replay_start(frames)):
                answer = [identity, *dialect.replay_answer(sequence, payload)]
                self._replays.send_multipart(answer, zmq.NOBLOCK)
            end = [identity, *dialect.replay_answer(dialect.END, b"")]
            self._replays.send_multipart(end, zmq.NOBLOCK)
        except KvEventsError as error:
            _log.warning("%s", error)
        except zmq.ZMQError as error:
            _log.warning("a replay was broken off: %s", error)

    def _free(self) -> None:
        self._context.destroy(linger=0)
        self._wake.close()
        self._woken.close()


def _bind(bound: zmq.Socket[bytes], endpoint: str, kind: str) -> str:
    """Bind a socket and return its endpoint, with wildcards resolved except for the host."""
    if endpoint.startswith("ipc://") and endpoint.endswith("/*"):
        endpoint = f"{endpoint[:-1]}{os.getpid()}-{kind}"
    if "[" in endpoint:
        bound.setsockopt(zmq.IPV6, 1)
    try:
        bound.bind(endpoint)
    except (zmq.ZMQError, ValueError) as error:
        raise ValueError(f"the KV {kind} endpoint {endpoint!r} cannot be bound: {error}") from error
    bound_endpoint = bound.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound_endpoint, bytes)
    return bound_endpoint.rstrip(b"\0").decode()
