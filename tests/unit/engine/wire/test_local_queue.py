"""Test the queue's estimate of the server's cache, and the charges of a call."""

import numpy as np
import pytest

from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import LOCAL_SCHEDULERS


def call(name, client, document, length=64):
    tokens = np.arange(document * 1000, document * 1000 + length, dtype=np.uint32)
    return LocalCall(name, client, length, 10, tokens)


def test_recent_prompts_are_assumed_cached():
    queue = LocalQueue(Dlpm(), 1, 4096)
    queue.add(call("first", "a", 1))
    assert queue.send(0.0) == ["first"]
    queue.add(call("other", "b", 2))
    queue.add(call("same", "c", 1, 80))
    queue.end("first")
    assert queue.send(0.0) == ["same"], "the longest match goes first"


def test_each_model_of_a_server_has_prompts_of_its_own():
    queue = LocalQueue(Dlpm(), 1, 4096)
    queue.add(call("first", "a", 1), model="base")
    assert queue.send(0.0) == ["first"]
    queue.add(call("adapter's", "b", 1, 80), model="adapter")
    queue.add(call("base's", "c", 1), model="base")
    queue.end("first")
    assert queue.send(0.0) == ["base's"], "the adapter computes the prompt again"


@pytest.mark.parametrize("scheduler", LOCAL_SCHEDULERS)
def test_a_paused_tenant_keeps_nobody_else_waiting(scheduler):
    """Neither is its call next after ``max_bypass`` others, nor do they wait for its credit."""
    queue = LocalQueue(LOCAL_SCHEDULERS[scheduler](), 1, 4096)
    queue.pause(0.0, 60.0, "paused")
    queue.add(call("first", "paused", 1), "paused")
    for number in range(100):
        queue.add(call(f"call {number}", "other", number, 300), "other")
        assert queue.send(59.0) == [f"call {number}"]
        queue.end(f"call {number}")
    with pytest.raises(ValueError, match="is already scheduled"):
        queue.add(call("first", "paused", 1), "paused")
    queue.pause(60.0, 61.0)
    assert queue.send(61.0) == ["first"]


def test_the_cache_estimate_is_bounded():
    queue = LocalQueue(Dlpm(), 1, 64)
    for name, document in (("first", 1), ("second", 2)):
        queue.add(call(name, "a", document))
        assert queue.send(0.0) == [name]
        queue.end(name)
    queue.add(call("old", "a", 1))
    queue.add(call("new", "a", 2))
    assert queue.send(0.0) == ["new"], "there was room for one document"


def test_a_call_is_charged_for_uncached_prompt_and_output_tokens():
    scheduler = Dlpm(DlpmOptions(quantum=1000, we=1.0, wq=2.0))
    queue = LocalQueue(scheduler, 2, 4096)
    queue.add(call("first", "a", 1))
    queue.add(call("second", "b", 1, 80))
    queue.send(0.0)
    before = {client: scheduler.deficit(client) for client in "ab"}
    assert before == {"a": 1000 - 64, "b": 1000 - 16}
    queue.decoded("first", 5)
    queue.decoded("first", 0)
    assert scheduler.deficit("a") == before["a"] - 10
    assert scheduler.deficit("b") == before["b"]


def test_a_flooding_client_does_not_delay_another():
    queue = LocalQueue(Dlpm(DlpmOptions(quantum=64)), 1, 0)
    for number in range(20):
        queue.add(call(f"flood {number}", "flood", number))
    queue.add(call("light", "light", 50))
    turns = []
    while not turns or turns[-1] != "light":
        turns += queue.send(0.0)
        queue.end(turns[-1])
    assert len(turns) <= 3


def test_a_call_id_cannot_be_queued_twice():
    queue = LocalQueue(Dlpm(), 1, 4096)
    queue.add(call("first", "a", 1))
    with pytest.raises(ValueError, match="already"):
        queue.add(call("first", "a", 2))
    assert queue.send(0.0) == ["first"]
    queue.end("first")
    with pytest.raises(KeyError):
        queue.end("first")


def test_a_queue_without_concurrency_is_rejected():
    with pytest.raises(ValueError, match="concurrency is 0"):
        LocalQueue(Dlpm(), 0, 4096)
