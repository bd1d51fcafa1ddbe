"""Test that a server leaves the cell if its speaker fails."""

import threading

import pytest
from redis.exceptions import NoPermissionError
from until import until

from fairserve.platform.server.shared_order import SharedOrder


class FailingSpeaker:
    """A speaker whose user of Redis may not write."""

    async def run(self):
        raise NoPermissionError("no permission")


@pytest.fixture
def shared():
    shared = object.__new__(SharedOrder)
    shared.lost, shared.problem, shared.speaker = threading.Event(), "", FailingSpeaker()
    shared._on_lost, shared._task = lambda: None, None
    return shared


async def test_a_speaker_that_fails_is_reported(shared, caplog):
    heard = []
    shared.call_when_lost(lambda: heard.append(shared.problem))
    shared.start()
    await until(lambda: heard)
    assert heard == ["the speaker has failed: NoPermissionError"]
    assert shared.lost.is_set()
    assert "no permission" in caplog.text
