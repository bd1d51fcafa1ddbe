"""The status line of every page: what is wrong with the server, since when, and what to do.

Computed from the state of the process alone, so that it holds while the database is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fairserve.platform.base.clock import utc_s

Level = Literal["healthy", "degraded", "down"]
SHOWN_MODELS = 3


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
    """The state of the platform, worst cause first."""

    level: Level
    since: float
    """UTC epoch second at which the worst cause began, or the last one ended."""
    causes: Sequence[Cause]
    started: float
    """UTC epoch second at which the process began."""


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
    """The current status, with the times at which its causes began. From any thread."""

    def __init__(self, read: Callable[[], ProcessState], wall: Callable[[], float] = utc_s) -> None:
        self._read, self._wall = read, wall
        self._started = self._changed = wall()
        self._seen: dict[str, float] = {}
        """When each present cause was first seen, by kind."""
        self._lock = threading.Lock()

    def sampled(self, _: object) -> None:
        """Note which causes there are, at each sample of the history: nobody may be looking."""
        self.now()

    def now(self) -> Status:
        """Return the current status. A cause without a time began when this was first called."""
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
