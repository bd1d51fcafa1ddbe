"""The thread of the engine accepts requests, survives single failures, and reports its end."""

import contextlib
import queue

import numpy as np
import pytest

from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.engine_thread import (
    EngineStoppedError,
    EngineThread,
    QueueFullError,
)
from fairserve.engine.torch.events import Failed, Generated
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.scheduling.local.fcfs import Fcfs

DEADLINE_S = 30


def request(name, max_tokens=4, token_ids=(1, 2, 3)):
    tokens = np.array(token_ids, dtype=np.uint32)
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return SequenceRequest(name, "c", tokens, params)


@pytest.fixture
def started(llama):
    """Yield a factory of engine threads, and a function that waits for the end of a sequence."""
    with contextlib.ExitStack() as stack:

        def start(scheduler=None, **options):
            arrived = queue.Queue()
            thread = EngineThread(
                llama,
                Fcfs() if scheduler is None else scheduler,
                EngineOptions(**{"kv_tokens": 1024, "max_batch": 4} | options),
                max_queue=4,
                on_events=lambda events: [arrived.put(event) for event in events],
            )

            def end_of(name):
                while True:
                    event = arrived.get(timeout=DEADLINE_S)
                    ended = isinstance(event, Failed) or getattr(event, "finish_reason", None)
                    if event.sequence_id == name and ended:
                        return event

            thread.start()
            stack.callback(thread.stop)
            return thread, end_of

        yield start


def test_submitted_calls_run(started):
    thread, end_of = started()
    thread.submit([request("a"), request("b", max_tokens=9)])
    assert isinstance(end_of("b"), Generated)
    thread.stop()
    stats = thread.stats()
    assert (stats.finished, stats.generated_tokens) == (2, 13)
    assert not thread.is_alive
    with pytest.raises(EngineStoppedError):
        thread.submit([request("c")])


def test_the_queue_accepts_all_samples_of_a_call_or_none(llama):
    thread = EngineThread(llama, Fcfs(), EngineOptions(1024), 4, lambda events: None)
    with pytest.raises(EngineStoppedError):
        thread.submit([request("early")])
    thread._thread.is_alive = lambda: True
    thread.submit([request(f"a{index}") for index in range(3)])
    with pytest.raises(QueueFullError, match="limit is 4"):
        thread.submit([request("b0"), request("b1")])
    thread.submit([request("c")])
    assert thread.stats().waiting == 4


def test_a_failing_forward_pass_fails_only_its_sequences(started, llama, monkeypatch):
    thread, end_of = started()
    with monkeypatch.context() as patch:
        patch.setattr(llama.model, "forward", broken)
        thread.submit([request("a")])
        assert "no memory" in end_of("a").message
    thread.submit([request("b")])
    assert isinstance(end_of("b"), Generated)
    assert thread.is_alive


def test_the_thread_ends_after_three_consecutive_failures(started, llama, monkeypatch):
    monkeypatch.setattr(llama.model, "forward", broken)
    thread, end_of = started()
    for name in ("a", "b", "c"):
        thread.submit([request(name)])
        assert "no memory" in end_of(name).message
    thread._thread.join(DEADLINE_S)
    assert not thread.is_alive
    assert "no memory" in thread.failure
    with pytest.raises(EngineStoppedError, match="no memory"):
        thread.submit([request("d")])


def test_a_broken_scheduler_fails_waiting_calls(started):
    class Broken(Fcfs):
        def peek(self):
            raise RuntimeError("no order")

    thread, end_of = started(Broken())
    with contextlib.suppress(EngineStoppedError):
        for name in ("a", "b", "c"):
            thread.submit([request(name)])
    assert "no order" in end_of("a").message
    thread._thread.join(DEADLINE_S)
    assert not thread.is_alive
    assert thread.stats().waiting == 0


def test_a_duplicate_id_fails_only_its_call(started):
    thread, end_of = started()
    thread.submit([request("a", max_tokens=400), request("a")])
    assert "already" in end_of("a").message
    assert end_of("a").finish_reason == "length"


def test_a_scheduler_that_holds_calls_back_does_not_stop_the_thread(started):
    class Later(Fcfs):
        passes = 0

        def start_pass(self, cache):
            super().start_pass(cache)
            self.passes += 1

        def peek(self):
            return super().peek() if self.passes > 3 else None

    thread, end_of = started(Later())
    thread.submit([request("a")])
    assert isinstance(end_of("a"), Generated)


def broken(**kwargs):
    raise RuntimeError("no memory")
