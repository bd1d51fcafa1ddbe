"""Brings stored settings to the cell that servers share, where the event of a change was lost.

A server commits a change and then puts its event. If it dies in between, the cell lacks the change. So
the speaker reads all settings now and then, and puts those that it has not put in that form. An event
that the cell has already changes nothing. Removed limits and users are not found this way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.server.while_speaking import WhileSpeaking
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.platform.tenancy.prices.repository import load_book
from fairserve.scheduling.events import Event

logger = logging.getLogger(__name__)

READ_S = 30.0
"""Seconds between two readings. Each costs a few queries, and 20 us for each app and user."""


def _key(event: Event) -> tuple[object, ...]:
    """Return what the settings of an event belong to."""
    names = ("scope", "tenant", "app", "user")
    return (type(event), *(getattr(event, name, None) for name in names))


class StoredSettings:
    """The settings that this process has put since it speaks."""

    def __init__(
        self,
        sessions: SessionFactory,
        control: ControlService,
        learning: LearningOptions | None,
        speaks: Callable[[], bool],
    ) -> None:
        self._sessions, self._control, self._learning = sessions, control, learning
        self._speaking = WhileSpeaking(READ_S, speaks)
        self._put: list[Event] = []
        self._prices: list[object] = []

    def begin(self) -> None:
        """Put all settings soon: this process speaks from now on."""
        self._put, self._prices = [], []
        self._speaking.begin()

    async def run(self) -> None:
        """Read and put until the task is cancelled."""
        async for _ in self._speaking.times():
            try:
                events, book = await asyncio.to_thread(self._read)
            except SQLAlchemyError as error:
                logger.warning("the stored settings are not read: %s", type(error).__name__)
                continue
            before = {_key(event): event for event in self._put}
            for event in events:
                if before.get(_key(event)) != event:
                    self._control.observe(event)
            self._put = events
            prices: list[object] = [*book.items()]
            if prices != self._prices:
                self._prices = prices
                self._control.use_prices(book)

    def _read(self) -> tuple[list[Event], PriceBook]:
        with self._sessions() as session:
            return [*load_control_events(session, self._learning)], load_book(session)
