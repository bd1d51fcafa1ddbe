"""Subscribers by key, for example the subscribers of one run.

Events are delivered on the event loop in order; a subscriber stores an event and returns at once.
Cost of an event for a key without subscribers: one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from fairserve.platform.base.errors import UnavailableError

MAX_SUBSCRIBERS = 10_000

Key = TypeVar("Key")
Event = TypeVar("Event")


class Subscribers(Generic[Key, Event]):
    """A registry of callbacks by the key that they subscribe to."""

    def __init__(self) -> None:
        self._callbacks: dict[Key, list[Callable[[Event], None]]] = {}
        self._count = 0

    def __contains__(self, key: object) -> bool:
        return key in self._callbacks

    def subscribe(self, key: Key, on_event: Callable[[Event], None]) -> Callable[[], None]:
        """Subscribe to the events of a key. The result unsubscribes; a second call has no effect.

        Raises UnavailableError if there are too many subscribers.
        """
        if self._count >= MAX_SUBSCRIBERS:
            raise UnavailableError(
                f"there are {MAX_SUBSCRIBERS} subscribers already, which is the limit; retry later",
                code="too_many_followers",
                headers={"Retry-After": "5"},
            )
        self._count += 1
        self._callbacks.setdefault(key, []).append(on_event)

        def unsubscribe() -> None:
            callbacks = self._callbacks.get(key, [])
            if on_event in callbacks:
                callbacks.remove(on_event)
                self._count -= 1
            if not callbacks:
                self._callbacks.pop(key, None)

        return unsubscribe

    def publish(self, key: Key, event: Event) -> None:
        """Deliver an event to the subscribers of a key."""
        for on_event in tuple(self._callbacks.get(key, ())):
            on_event(event)

    def publish_all(self, event: Event) -> None:
        """Deliver an event to all subscribers."""
        for key in tuple(self._callbacks):
            self.publish(key, event)
