"""The status line of every page: what is wrong with the server, since when, and what to do.

It follows from the state of the process and from the alarms of the viewer: those about its calls, or all
for an operator. Both are in memory, so that it holds while the database is away.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fairserve.platform.background.alarms.alarm import Alarm
from fairserve.platform.base.clock import utc_s

Level = Literal["healthy", "alarmed", "degraded", "down"]
"""``alarmed``: nothing is wrong with the server itself, and the viewer has open alarms."""
SHOWN_MODELS = 3
MAX_READERS = 1000
"""Tenants whose last open alarm is remembered."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of a process that the status line follows from."""

    draining: bool = False
    rejection: str = ""
    """Why nothing new is accepted; empty if calls are accepted."""
    database_away_since: float | None = None
    """UTC epoch second; None while the database answers. ``ledger_waits_since`` likewise."""
    ledger_waits_since: float | None = None
    models: int = 1
    """Number of served models."""
    models_without_worker: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong. ``kind`` is the same for as long as it lasts."""

    kind: str
    level: Level
    why: str
    remedy: str
    since: float | None = None
    """UTC epoch second at which it began; None: when it was first seen."""
    place: str = ""
    """Page on which to correct it."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the platform for a viewer, worst cause first."""

    level: Level
    since: float
    """UTC epoch second at which the worst cause began, or else the oldest open alarm; of a healthy
    platform at which the last of both ended."""
    causes: Sequence[Cause]
    started: float
    """UTC epoch second at which the process began."""
    alarms: Sequence[Alarm] = ()
    """Alarms whose condition holds and that nobody has acknowledged, bad ones first."""
    acknowledged: int = 0
    """Number of the other alarms whose condition holds."""


def causes(state: ProcessState) -> list[Cause]:
    """Return what is wrong, worst first."""
    return sorted(_causes(state), key=lambda cause: cause.level != "down")


def _causes(state: ProcessState) -> Iterator[Cause]:
    if state.draining:
        yield Cause(
            "draining",
            "down",
            "This server is draining and admits no new calls.",
            "It ends when its calls have ended; use another server.",
        )
    if state.rejection and not state.draining:
        why = f"New calls are rejected: {state.rejection}."
        yield Cause("rejection", "down", why, "Calls in progress continue.")
    if state.database_away_since is not None:
        yield Cause(
            "database",
            "degraded",
            "The database does not answer. Pages show what is in memory, with the last known names.",
            "Start PostgreSQL, or repair the network to it; the rows of calls wait in the journal.",
            state.database_away_since,
        )
    elif state.ledger_waits_since is not None:
        yield Cause(
            "ledger",
            "degraded",
            "The database accepts no rows of calls, so usage is behind.",
            "Check its disk and the log of this server; the rows wait in the journal.",
            state.ledger_waits_since,
        )
    without = state.models_without_worker
    if len(without) >= state.models:
        yield Cause(
            "workers",
            "down",
            "No worker is ready, so calls wait and then fail.",
            "Start or undrain a worker.",
            place="/console/cluster",
        )
    elif without:
        more = f" and {len(without) - SHOWN_MODELS} more" if len(without) > SHOWN_MODELS else ""
        yield Cause(
            "model",
            "degraded",
            f"No worker serves {', '.join(without[:SHOWN_MODELS])}{more}.",
            "Start or undrain a worker.",
            place="/console/cluster",
        )


class StatusLine:
    """The current status. From any thread.

    Weakness: a tenant whose last open alarm is forgotten for those of 1,000 others is shown as healthy
    since a later time.
    """

    def __init__(
        self,
        read: Callable[[], ProcessState],
        alarms: Callable[[str | None], Sequence[Alarm]],
        wall: Callable[[], float] = utc_s,
    ) -> None:
        """``alarms`` returns the current alarms that a tenant sees, or all; bad ones first."""
        self._read, self._alarms, self._wall = read, alarms, wall
        self._started = self._changed = wall()
        self._seen: dict[str, float] = {}
        """When each present cause was first seen, by kind."""
        self._alarmed: OrderedDict[str | None, float] = OrderedDict()
        """When each tenant, or an operator (None), had an open alarm last, in this order."""
        self._forgotten = self._started
        """Latest time that left the bounded ``_alarmed``."""
        self._lock = threading.Lock()

    def sampled(self, _: object) -> None:
        """Note which causes and open alarms there are, at each sample of the history.

        Nobody may be looking.
        """
        self.now()
        opened = _opened(self._alarms(None))
        readers: set[str | None] = {reader for each in opened for reader in each.tenants}
        if opened:
            readers.add(None)
        now = self._wall()
        with self._lock:
            for reader in readers:
                self._note(reader, now)

    def now(self) -> Status:
        """Return the status of the process. A cause without a time began when this was first called."""
        found, now = causes(self._read()), self._wall()
        with self._lock:
            if self._seen and not found:
                self._changed = now
            self._seen = {each.kind: self._seen.get(each.kind, now) for each in found}
            if not found:
                return Status("healthy", self._changed, (), self._started)
            worst = found[0]
            since = self._seen[worst.kind] if worst.since is None else worst.since
            return Status(worst.level, since, found, self._started)

    def of(self, reader: str | None) -> Status:
        """Return the status of the process with the alarms that a tenant sees, or all for None."""
        process, alarms = self.now(), self._alarms(reader)
        opened = _opened(alarms)
        known = sum(each.state == "acknowledged" and not each.over for each in alarms)
        status = replace(process, alarms=opened, acknowledged=known)
        now = self._wall()
        with self._lock:
            if opened:
                self._note(reader, now)
            ended = self._alarmed.get(reader, self._forgotten)
        if process.level != "healthy":
            return status
        if opened:
            since = min(each.opened_at for each in opened)
            return replace(status, level="alarmed", since=since)
        return replace(status, since=max(process.since, ended))

    def _note(self, reader: str | None, now: float) -> None:
        self._alarmed[reader] = now
        self._alarmed.move_to_end(reader)
        if len(self._alarmed) > MAX_READERS:
            self._forgotten = self._alarmed.popitem(last=False)[1]


def _opened(alarms: Sequence[Alarm]) -> list[Alarm]:
    return [each for each in alarms if each.state == "open" and not each.over]
