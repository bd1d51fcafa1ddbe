"""Who follows a run is told of its calls as they are accepted, granted, begun and ended, and of its end.

Told on the event loop, in the order in which it happens; a follower keeps what it is told for itself
and returns at once. Cost for a run that nobody follows: one look into a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.platform.control.record import CallRecord
from fairserve.platform.errors import UnavailableError

MAX_FOLLOWERS = 10_000


@dataclass(frozen=True, slots=True)
class CallNews:
    """A call of the run is in another state."""

    state: str
    """``queued``, ``running``, or how it ended."""
    record: CallRecord
    """As far as it is known."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run has ended; a late call may reopen one that idled to its end."""


@dataclass(frozen=True, slots=True)
class ServerStops:
    """Nothing more is told."""


RunNews = CallNews | RunEnded | ServerStops
Tell = Callable[[RunNews], None]


class RunWatchers:
    """Followers by the core's id of a run."""

    def __init__(self) -> None:
        self._tells: dict[str, list[Tell]] = {}
        self._followers = 0

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._tells

    def watch(self, run_id: str, tell: Tell) -> Callable[[], None]:
        """Follow a run, live or not; the answer ends it, and may be called twice.

        Raises UnavailableError if too many follow runs already.
        """
        if self._followers >= MAX_FOLLOWERS:
            raise UnavailableError(
                f"{MAX_FOLLOWERS} followers of runs are the most allowed",
                code="too_many_followers",
                headers={"Retry-After": "5"},
            )
        self._followers += 1
        self._tells.setdefault(run_id, []).append(tell)

        def stop() -> None:
            tells = self._tells.get(run_id, [])
            if tell in tells:
                tells.remove(tell)
                self._followers -= 1
            if not tells:
                self._tells.pop(run_id, None)

        return stop

    def stop(self) -> None:
        """Tell all of them that the server stops."""
        for run_id in tuple(self._tells):
            self.tell(run_id, ServerStops())

    def tell(self, run_id: str, news: RunNews) -> None:
        """Tell those who follow the run."""
        for tell in tuple(self._tells.get(run_id, ())):
            tell(news)
