"""The relay reports the outcome of each grant exactly once, in every case."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest
from until import settle

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.interactions.call import Call
from fairserve.platform.base.errors import FairServeError, WorkerFailedError
from fairserve.platform.control.messages import Cancel, Grant
from fairserve.platform.fleet.models import ServedModel
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.serving.completions.requests import CompletionCall
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.service import DecisionService

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "usage": {"prompt_tokens": 4}}


def text(n):
    usage = {"prompt_tokens": 4, "completion_tokens": n}
    return {"choices": [{"index": 0, "delta": {"content": f"t{n}"}}], "usage": usage}


ONE, TWO = text(1), text(2)


class Worker:
    """Plays a script: chunks, exceptions to raise, or events to wait for."""

    def __init__(self, *script, refuses=None):
        self.script = script
        self.refuses = refuses
        self.closed = 0
        self.waiting = asyncio.Event()
        self.steps = iter(())

    async def open(self, request):
        if self.refuses is not None:
            raise self.refuses
        self.steps = iter(self.script)
        self.woken = asyncio.Event()
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        step = next(self.steps, None)
        if step is None:
            raise StopAsyncIteration
        if isinstance(step, Exception):
            raise step
        if step == "wait":
            self.waiting.set()
            await self.woken.wait()
            raise WorkerStreamError("closed")
        return WorkerChunk(step)

    def close(self):
        self.closed += 1
        if hasattr(self, "woken"):
            self.woken.set()


class Control:
    """Grants worker after worker, and keeps every message."""

    def __init__(self, *workers):
        self.workers = list(workers)
        self.releases = []
        self.reports = []
        self.lease = True
        self.lease_s = 60.0
        self.on_cancel = None
        self.reported = asyncio.Event()
        self.in_file = asyncio.Event()
        self.in_file.set()

    def grant(self):
        worker = self.workers.pop(0)
        return Grant("call", "app/run", 1, worker, "tenant/user", 1.0, 0.0, self.lease_s)

    async def submit(self, message, on_cancel):
        self.on_cancel = on_cancel
        return self.grant()

    def progress(self, message):
        self.reports.append(message)
        self.reported.set()
        return self.lease

    async def release(self, message):
        self.releases.append(message)
        return self.grant() if message.retry_on_another_worker else None

    async def recorded(self):
        await self.in_file.wait()


def relay(control, **workers):
    call = Call("call", "t", "app", "u", "app/run", "m", 4, 0, 20, token_ids=np.zeros(4, np.uint32))
    model = ServedModel(("m",), "m", 100, reader=None)
    checked = CheckedCall(call, "row", "run", "call", model, "m")
    completion = CompletionCall("/v1/chat/completions", checked, body={}, stream=True)
    return Relay(completion, DecisionService(None, control, models=None), workers)


async def read(each):
    return [chunk.data async for chunk in each.chunks()]


def ended(control):
    (release,) = control.releases
    return release.outcome, release.usage.output_tokens


async def test_a_complete_answer_is_relayed():
    control, worker = Control("a"), Worker(ROLE, text(1), text(2))
    assert await read(relay(control, a=worker)) == [ROLE, text(1), text(2)]
    assert ended(control) == ("completed", 2)
    assert control.releases[0].ttft_s is not None
    assert control.reports[0].started
    assert worker.closed


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "client disconnected"),
        (KeyError("x"), "internal error: KeyError"),
        (WorkerFailedError("mixed parts"), "mixed parts"),
    ],
)
async def test_an_answer_that_cannot_be_written_has_failed(error, text):
    control = Control("a")
    each = relay(control, a=Worker(ONE, TWO))
    async with aclosing(each.chunks()) as chunks:
        await anext(chunks)
        each.unwritten = error
    (release,) = control.releases
    assert release.outcome == ("cancelled" if error is None else "failed")
    assert release.error == text


async def test_an_answer_completes_only_with_a_durable_row():
    control, worker = Control("a"), Worker(text(1))
    control.in_file.clear()
    chunks = relay(control, a=worker).chunks()
    assert (await anext(chunks)).data == text(1)
    end = asyncio.create_task(anext(chunks, "end"))
    await settle()
    assert not end.done()
    assert control.releases
    control.in_file.set()
    assert await end == "end"


@pytest.mark.parametrize(
    "failing",
    [
        Worker(refuses=WorkerUnavailableError("no connection", unreachable=True)),
        Worker(WorkerUnavailableError("broken")),
        Worker(ROLE, WorkerStreamError("broken")),
    ],
    ids=["refused", "before anything", "after the role"],
)
async def test_a_call_that_fails_before_the_first_token_is_retried(failing):
    control = Control("a", "b")
    assert await read(relay(control, a=failing, b=Worker(ROLE, text(1)))) == [ROLE, text(1)]
    first, second = control.releases
    assert first.retry_on_another_worker
    assert (second.outcome, second.usage.output_tokens) == ("completed", 1)


async def test_attempts_are_bounded():
    control = Control("a", "a", "a", "a")
    with pytest.raises(FairServeError) as raised:
        await read(relay(control, a=Worker(refuses=WorkerUnavailableError("busy"))))
    assert raised.value.status == 503
    assert [release.retry_on_another_worker for release in control.releases] == [True, True, False]
    assert control.releases[-1].outcome == "failed"


def failing(cause, message=""):
    return Worker(refuses=WorkerUnavailableError("raw", cause=cause, client_message=message))


@pytest.mark.parametrize(
    ("workers", "status", "attempts"),
    [
        ([failing("failed", "CUDA error"), failing("failed", "CUDA error")], 502, 2),
        ([failing("unknown"), failing("failed", "CUDA error")], 502, 2),
        ([failing("worker"), failing("failed", "CUDA error"), failing("busy")], 503, 3),
        ([failing("unknown"), failing("unknown")], 503, 2),
        ([failing("busy"), failing("busy"), failing("busy")], 503, 3),
    ],
    ids=["errors", "one answered", "once only", "no answer", "busy"],
)
async def test_a_call_that_may_have_caused_the_failure_has_two_attempts(workers, status, attempts):
    names = "abc"[: len(workers)]
    control = Control(*names)
    with pytest.raises(FairServeError) as raised:
        await read(relay(control, **dict(zip(names, workers, strict=True))))
    assert (raised.value.status, len(control.releases)) == (status, attempts)
    assert ("CUDA error" in raised.value.message) == (status == 502)


async def test_the_error_of_an_attempt_has_no_address():
    control = Control("a", "a", "a")
    broken = WorkerUnavailableError("no connection: host 10.0.0.7:8000", unreachable=True)
    with pytest.raises(FairServeError):
        await read(relay(control, a=Worker(refuses=broken)))
    assert {release.error for release in control.releases} == {"a: no connection: host [address]"}


async def test_after_the_first_token_a_failure_is_final():
    control = Control("a", "b")
    each = relay(control, a=Worker(ROLE, text(1), WorkerStreamError("gone")), b=Worker())
    with pytest.raises(FairServeError) as raised:
        await read(each)
    assert raised.value.code == "worker_failed"
    assert ended(control) == ("failed", 1)


async def test_a_rejection_by_the_worker_is_passed_on():
    control = Control("a")
    rejected = WorkerRejectedError(400, {"message": "no tools", "param": "tools"})
    with pytest.raises(FairServeError) as raised:
        await read(relay(control, a=Worker(refuses=rejected)))
    assert (raised.value.status, raised.value.param) == (400, "tools")
    assert ended(control) == ("failed", 0)


async def test_a_reader_that_stops_releases_immediately():
    control, worker = Control("a"), Worker(ROLE, text(1), text(2))
    async with aclosing(relay(control, a=worker).chunks()) as chunks:
        await anext(chunks)
        await anext(chunks)
    assert ended(control) == ("cancelled", 1)
    assert worker.closed


async def test_a_reader_that_is_cancelled_while_it_waits_releases():
    control, worker = Control("a"), Worker(ROLE, text(1), "wait")
    reading = asyncio.create_task(read(relay(control, a=worker)))
    await worker.waiting.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended(control) == ("cancelled", 1)


@pytest.mark.parametrize("before_the_first_token", [True, False])
async def test_control_stops_a_call_that_waits_for_its_worker(before_the_first_token):
    script = (ROLE, "wait") if before_the_first_token else (ROLE, text(1), "wait")
    control, worker = Control("a", "b"), Worker(*script)
    reading = asyncio.create_task(read(relay(control, a=worker, b=Worker(text(1)))))
    await worker.waiting.wait()
    control.on_cancel(Cancel("call", "cancelled", "its run was cancelled"))
    with pytest.raises(FairServeError, match="its run was cancelled"):
        await reading
    assert ended(control)[0] == "cancelled", "it is not tried on another worker"


async def test_an_expired_lease_stops_the_stream():
    control = Control("a")
    control.lease = False
    with pytest.raises(FairServeError, match="lease has ended"):
        await read(relay(control, a=Worker(ROLE, text(1))))
    assert ended(control)[0] == "failed"


async def test_a_call_that_waits_inside_its_worker_keeps_its_lease():
    control, worker = Control("a"), Worker("wait")
    control.lease_s = 0.02
    each = relay(control, a=worker)
    reading = asyncio.create_task(read(each))
    await control.reported.wait()
    assert not control.reports[0].started
    assert each.queue_s is None
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended(control) == ("cancelled", 0)
    count = len(control.reports)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    async with asyncio.timeout(60):
        await asyncio.gather(*others, return_exceptions=True)
    assert len(control.reports) == count, "no sign of life after the end"


class Hung(Worker):
    """Accepts the call and never answers."""

    async def open(self, request):
        self.waiting.set()
        await asyncio.Event().wait()


async def test_a_call_at_a_lost_hung_worker_is_served_by_another():
    control = Control("a", "b")
    control.lease_s = 0.02
    workers = {"a": Hung(), "b": Worker(ROLE, text(1))}
    each = relay(control, **workers)
    hung = workers["a"]
    each._workers = workers
    reading = asyncio.create_task(read(each))
    await hung.waiting.wait()
    del workers["a"]
    assert await reading == [ROLE, text(1)]
    assert [r.retry_on_another_worker for r in control.releases] == [True, False]
    assert each.queue_s is not None


async def test_a_call_stopped_at_a_hung_worker_ends_immediately():
    control = Control("a")
    hung = Hung()
    reading = asyncio.create_task(read(relay(control, a=hung)))
    await hung.waiting.wait()
    control.on_cancel(Cancel("call", "failed", "the server is stopping"))
    with pytest.raises(FairServeError, match="the server is stopping"):
        await reading
    assert ended(control) == ("failed", 0)
