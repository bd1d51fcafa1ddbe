"""Schedulers that order waiting calls by the cached part of their prompts, without charges.

LPM and Preble's groups differ in the order; they share the ids and the pull protocol. The papers
add calls "until the memory pool is full": the first that does not fit ends the pass
(``when_full="stop"``, also SGLang's behaviour). ``"skip"`` continues with other calls, as DLPM
does.

Weakness of both: no client is protected from another, and with ``"skip"`` a large call among small
ones may never run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item, MatchedPlaces

WhenFull = Literal["stop", "skip"]


def check_when_full(when_full: str) -> None:
    """Raise ValueError for an unknown value."""
    if when_full not in ("stop", "skip"):
        raise ValueError(f"when_full is {when_full!r}; allowed: 'stop', 'skip'")


class ByMatch(ABC):
    """Base of the :class:`~fairserve.scheduling.base.LocalScheduler` classes over sorted lists."""

    def __init__(self, when_full: WhenFull) -> None:
        self._places = MatchedPlaces(self._placement)
        self._when_full = when_full
        self._arrivals = 0
        self._calls: dict[str, MatchedCall] = {}
        """Waiting and running calls by id."""
        self._offered: MatchedCall | None = None
        self._stopped = True

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._places)

    def add(self, call: LocalCall) -> None:
        """Queue a call; it is offered from the next pass on. Raises ValueError for a known id."""
        if call.call_id in self._calls:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        self._arrivals += 1
        call.arrival = self._arrivals
        matched = self._calls[call.call_id] = MatchedCall(call)
        self._places.add(matched)

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step: recompute matches that may have changed."""
        self._places.start_pass(cache)
        self._offered = None
        self._stopped = False
        self._begin()

    def peek(self) -> LocalCall | None:
        """Return the next call, or None at the end of the step."""
        if self._offered is None and not self._stopped:
            self._offered = self._next()
        return None if self._offered is None else self._offered.call

    def accept(self, cached_tokens: int) -> None:
        """Run the offered call."""
        matched = self._take_offer("accept")
        self._places.remove(matched)
        matched.running = True
        self._accepted()

    def skip(self) -> None:
        """Skip the offered call until the next step."""
        matched = self._take_offer("skip")
        if self._when_full == "stop":
            self._stopped = True
        else:
            self._places.pass_over(matched)

    def _take_offer(self, asked: str) -> MatchedCall:
        offered, self._offered = self._offered, None
        assert offered is not None, f"{asked} follows a peek that offered a call"
        return offered

    def decoded(self, call_id: str, tokens: int) -> None:
        """Check that the call is running; nothing is charged. Raises KeyError otherwise."""
        self._of_running(call_id)

    def finish(self, call_id: str) -> None:
        """Remove a call that ended or was cancelled, waiting or running. KeyError if unknown."""
        matched = self._calls.pop(call_id)
        if matched.running:
            return
        self._places.remove(matched)
        if matched is self._offered:
            self._offered = None

    def requeue(self, call_id: str) -> None:
        """Requeue a preempted call with its old arrival."""
        matched = self._of_running(call_id)
        matched.running = False
        self._places.add(matched)

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """Return (): no service is counted. Raises KeyError if the call is not running."""
        self._of_running(call_id)
        return ()

    def _of_running(self, call_id: str) -> MatchedCall:
        """Return a running call. Raises KeyError if it is not running."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        return matched

    @abstractmethod
    def _placement(self, matched: MatchedCall, matched_tokens: int) -> tuple[list[Item], int]:
        """Return the list of a call, and its rank in the list."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin a pass."""

    @abstractmethod
    def _next(self) -> MatchedCall | None:
        """Return the call to offer next."""

    @abstractmethod
    def _accepted(self) -> None:
        """Handle that the last offered call was accepted."""
