"""When KV events of a worker are lost, the log names the view that the router uses."""

import logging

import pytest
from until import until

from fairserve.engine.kv_events import subscriber
from fairserve.engine.wire.base import KvEndpoints
from fairserve.platform.fleet.kv_event_bridge import KvEventBridge
from fairserve.scheduling.events import WorkerCacheReset
from fairserve.scheduling.locality.block_keys import BlockHasher


@pytest.fixture
def bridge(caplog):
    caplog.set_level(logging.INFO)
    posted = []
    made = KvEventBridge(BlockHasher(1, 16), posted.append)
    made.posted = posted
    yield made
    made.close()


async def test_a_loss_and_its_end_are_logged_once_each(bridge, caplog):
    (follower,) = bridge.follow("w", [KvEndpoints("tcp://127.0.0.1:1")], 1000)
    for complete in (True, False, False, True, True):
        bridge._forward(WorkerCacheReset("w", complete))
    follower.close()
    assert len(bridge.posted) == 5
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]
    assert "worker w" in caplog.text
    assert "its own view" in caplog.text


async def test_endpoints_without_a_publisher_are_reported(bridge, caplog, monkeypatch):

    monkeypatch.setattr(subscriber, "LOST_S", 0.05)
    (follower,) = bridge.follow("w", [KvEndpoints("tcp://127.0.0.1:1")], 1000)
    await until(lambda: "no connection" in caplog.text)
    assert (follower.stats.connected, follower.stats.complete) == (False, None)
    follower.close()
