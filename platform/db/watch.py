"""The watch of the database: one probe a second, so that no request finds out by waiting.

While the database does not answer, sessions fail at once (:class:`DatabaseAwayError`), and what is in
memory is served without it. A database that hangs, such as a suspended process or a network that drops
packets, answers no query and breaks no connection: after :data:`ANSWER_S` the watch ends the connections
of management, whose threads then fail instead of waiting on. So a management request waits for the
database for at most ``PROBE_S + ANSWER_S``, and the time to connect (``MANAGEMENT_CONNECT_S``).

Cost: one statement without a table a second, on a connection of its own.
Weakness: a database that answers the probe and hangs on a table's lock does not count as away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from weakref import ref

from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError

from fairserve.platform.base.clock import utc_s

logger = logging.getLogger(__name__)

PROBE_S = 1.0
"""Seconds between two probes."""
ANSWER_S = 5.0
"""Seconds after which a probe without an answer has failed."""


class DatabaseAwayError(OperationalError):
    """The database does not answer the probes: the session did not begin."""

    def __init__(self) -> None:
        super().__init__(None, None, ConnectionError("the database does not answer"))


class DatabaseWatch:
    """Probes the database of an engine from ``start`` to ``close``; readable from any thread."""

    def __init__(
        self, probe: Engine, management: Engine, *, wall: Callable[[], float] = utc_s
    ) -> None:
        """``probe`` serves only the probes; the connections of ``management`` end when one hangs."""
        self.away_since: float | None = None
        """UTC epoch second since which the database does not answer; None while it does."""
        self._probe_engine = probe
        self._wall = wall
        self._connections: list[ref[Any]] = []
        """Those of the pools, of which some may be gone. A change makes another list."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if probe.dialect.name == "postgresql":
            for engine in (probe, management):
                event.listen(engine.pool, "connect", self._connected)

    def start(self) -> None:
        """Probe in a thread of its own from now on."""
        self._thread = threading.Thread(target=self._run, name="database watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop probing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._probe_engine.dispose()

    def _run(self) -> None:
        with ThreadPoolExecutor(1, "database probe") as probes:
            while not self._stopping.wait(PROBE_S):
                began = self._wall()
                probe = probes.submit(self._probe)
                wait((probe,), ANSWER_S)
                hangs = not probe.done()
                if hangs:
                    self._end_connections()
                self._note(began, answered=not hangs and probe.exception() is None)

    def _probe(self) -> None:
        with self._probe_engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def _note(self, began: float, *, answered: bool) -> None:
        since = self.away_since
        if answered and since is not None:
            logger.warning("the database answers again, after %.0f s", self._wall() - since)
            self.away_since = None
        elif not answered and since is None:
            logger.warning("the database does not answer; what is in memory is served without it")
            self.away_since = began

    def _connected(self, connection: Any, _: object) -> None:
        with self._lock:
            known = [each for each in self._connections if each() is not None]
            self._connections = [*known, ref(connection)]

    def _end_connections(self) -> None:
        """End all known connections: what waits for an answer fails now."""
        for connection in [each() for each in self._connections]:
            if connection is None:
                continue
            # A connection may close in between.
            with (
                contextlib.suppress(OSError, self._probe_engine.dialect.loaded_dbapi.Error),
                socket.socket(fileno=os.dup(connection.fileno())) as own,
            ):
                own.shutdown(socket.SHUT_RDWR)
