"""Test polls for changed profiles while a server stops."""

import asyncio
import threading

import pytest
from until import settle

from fairserve.platform.tenancy.profiles import changes
from fairserve.platform.tenancy.profiles.changes import ProfileChanges


async def test_a_cancelled_poll_ends_before_its_task(monkeypatch):
    """The server closes the pool afterwards, so the poll must release its connection first."""
    began, may_end = threading.Event(), threading.Event()

    def poll(_):
        began.set()
        assert may_end.wait(60)
        return []

    monkeypatch.setattr(changes, "INTERVAL_S", 0)
    monkeypatch.setattr(ProfileChanges, "poll", poll)
    task = asyncio.create_task(ProfileChanges(None, None, None, {}).run())
    await asyncio.to_thread(began.wait, 60)
    task.cancel()
    await settle()
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
