"""Who follows a run is told of its calls as they are accepted, granted, begun and ended, and of its end.

Told on the event loop, in the order in which it happens; a follower keeps what it is told for itself
and returns at once. Cost for a run that nobody follows: one look into a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.record import CallRecord

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

Key = TypeVar("Key")
News = TypeVar("News")


class Watchers(Generic[Key, News]):
    """Followers by what they follow."""

    def __init__(self) -> None:
        self._tells: dict[Key, list[Callable[[News], None]]] = {}
        self._followers = 0

    def __contains__(self, key: object) -> bool:
        return key in self._tells

    def watch(self, key: Key, tell: Callable[[News], None]) -> Callable[[], None]:
        """Follow it, live or not; the answer ends that, and may be called twice.

        Raises UnavailableError if there are too many followers already.
        """
        if self._followers >= MAX_FOLLOWERS:
            raise UnavailableError(
                f"{MAX_FOLLOWERS} followers are the most allowed",
                code="too_many_followers",
                headers={"Retry-After": "5"},
            )
        self._followers += 1
        self._tells.setdefault(key, []).append(tell)

        def stop() -> None:
            tells = self._tells.get(key, [])
            if tell in tells:
                tells.remove(tell)
                self._followers -= 1
            if not tells:
                self._tells.pop(key, None)

        return stop

    def tell(self, key: Key, news: News) -> None:
        """Tell those who follow it."""
        for tell in tuple(self._tells.get(key, ())):
            tell(news)

    def tell_all(self, news: News) -> None:
        """Tell all of them."""
        for key in tuple(self._tells):
            self.tell(key, news)
