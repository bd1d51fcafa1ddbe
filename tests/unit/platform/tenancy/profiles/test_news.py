"""News of profiles while a server stops."""

import asyncio
import threading

import pytest
from until import settle

from fairserve.platform.tenancy.profiles import news
from fairserve.platform.tenancy.profiles.news import ProfileNews


async def test_a_cancelled_look_ends_before_its_task(monkeypatch):
    """So that the server, which then closes the pool, closes the connection of the look, too."""
    began, may_end = threading.Event(), threading.Event()

    def look(_):
        began.set()
        assert may_end.wait(60)
        return []

    monkeypatch.setattr(news, "INTERVAL_S", 0)
    monkeypatch.setattr(ProfileNews, "look", look)
    task = asyncio.create_task(ProfileNews(None, None, None, {}).run())
    await asyncio.to_thread(began.wait, 60)
    task.cancel()
    await settle()
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
