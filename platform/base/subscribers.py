"""Subscribers by key, for example the subscribers of one run.

Events are delivered on the event loop in order; a subscriber stores an event and returns at once.
Cost of an event for a key without subscribers: one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from fairserve.platform.base.errors import RateLimitedError, UnavailableError
from fairserve.platform.base.shared_limit import SharedLimit

MAX_SUBSCRIBERS = 10_000
SUBSCRIBER_SHARE = 1 / 4
"""Share of the subscribers that one tenant may have of those that others leave."""

RETRY_S = "5"

Key = TypeVar("Key")
Event = TypeVar("Event")


class Subscribers(Generic[Key, Event]):
    """A registry of callbacks by the key that they subscribe to."""

    def __init__(self) -> None:
        self._callbacks: dict[Key, list[Callable[[Event], None]]] = {}
        self._limit = SharedLimit(MAX_SUBSCRIBERS, SUBSCRIBER_SHARE)

    def __contains__(self, key: object) -> bool:
        return key in self._callbacks

    def subscribe(
        self, key: Key, on_event: Callable[[Event], None], sharer: str
    ) -> Callable[[], None]:
        """Subscribe to the events of a key. The result unsubscribes; a second call has no effect.

        ``sharer`` is the tenant that follows, or the operators. Raises RateLimitedError or
        UnavailableError if there are too many subscribers, of the tenant or in all.
        """
        full = self._limit.take(sharer)
        if full == "owner":
            raise RateLimitedError(
                f"this tenant has {self._limit.of(sharer)} followers, which is the limit; end some",
                code="too_many_followers",
                headers={"Retry-After": RETRY_S},
            )
        if full == "all":
            raise UnavailableError(
                f"there are {self._limit.limit} followers already, which is the limit; retry later",
                code="too_many_followers",
                headers={"Retry-After": RETRY_S},
            )
        self._callbacks.setdefault(key, []).append(on_event)

        def unsubscribe() -> None:
            callbacks = self._callbacks.get(key, [])
            if on_event in callbacks:
                callbacks.remove(on_event)
                self._limit.release(sharer)
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
