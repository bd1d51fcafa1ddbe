"""The relay has one call carried to its end, by our own connections or by a gateway's."""

import asyncio
import copy
import gc
import weakref

import numpy as np
import pytest
from until import settle, until

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.interactions.call import Call
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.messages import Cancel, Grant, Submit
from fairserve.platform.fleet.models import ServedModel
from fairserve.platform.serving.completions.answer import ClientLimits, ConnectionSink
from fairserve.platform.serving.completions.openai_endpoint import OpenAIWriter
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.serving.completions.requests import CHAT, read_fields
from fairserve.platform.serving.completions.running_call import RunningCall
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.scheduling.local.dlpm import Dlpm

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "usage": {"prompt_tokens": 4}}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def text(n):
    usage = {"prompt_tokens": 4, "completion_tokens": n}
    return {"choices": [{"index": 0, "delta": {"content": f"t{n}"}}], "usage": usage}


class Worker:
    """Plays a script: chunks, failures, or "wait", each in a pass of the loop of its own."""

    may_have_begun = False

    def __init__(self, *script):
        self.script = list(script)
        self.closed = self.paused = self.transport = 0
        self.waiting = asyncio.Event()

    def send(self, request, receiver, transport=None):
        self.closed, self.receiver = 0, receiver
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.loop.call_soon(self._play)
        return self

    def _play(self):
        if self.closed or self.paused:
            return
        step = self.script.pop(0) if self.script else None
        if step is None:
            self.receiver.ended()
        elif isinstance(step, Exception):
            self.receiver.failed(step)
        elif step == "wait":
            self.waiting.set()
        else:
            self.receiver.received([WorkerChunk(copy.deepcopy(step))])
            self.loop.call_soon(self._play)

    def close(self):
        self.closed += 1

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False
        self.loop.call_soon(self._play)


class Control:
    """Grants worker after worker, and keeps every message."""

    shared = False

    def __init__(self, *workers, lease_s=60.0):
        self.workers = list(workers)
        self.releases, self.reports = [], []
        self.lease, self.lease_s = True, lease_s
        self.on_message = None
        self.reported = asyncio.Event()
        self.in_file = asyncio.Event()
        self.in_file.set()

    def grant(self):
        worker = self.workers.pop(0)
        return Grant("call", worker, "tenant/user", 1.0, 0.0, self.lease_s)

    async def submit(self, message, on_message):
        self.on_message = on_message
        return self.grant()

    def progress(self, message):
        self.reports.append(message)
        self.reported.set()
        return self.lease

    async def release(self, message):
        self.releases.append(message)
        if not message.retry_on_another_worker:
            return None
        return self.grant() if self.workers else None

    async def recorded(self):
        await self.in_file.wait()

    def limits_in_use(self, tenant, app, user):
        return LimitsInUse()


class Reader:
    """Keeps what is written; full on demand."""

    lost, is_full = "", False

    def __init__(self):
        self.body = b""
        self.on_space = None

    def write(self, body):
        self.body += body

    @property
    def tokens(self):
        return self.body.count(b'"content":"t')


def relay(control, workers, reader=None, *, stream=True, **more):
    call = Call("call", "t", "app", "u", "app/run", "m", 4, 0, 20, token_ids=np.zeros(4, np.uint32))
    model = ServedModel(("m",), "m", 100, reader=None)
    checked = CheckedCall(Submit(call, "row"), "call", model, "m")
    messages = [{"role": "user", "content": "ok"}]
    request = read_fields(CHAT, {"model": "m", "messages": messages, "stream": stream})
    running = RunningCall(request, checked, OpenAIWriter(request, checked), 0.0)
    decisions = DecisionService(None, control, models=None)
    return Relay(running, decisions, workers.get, reader, **more)


def ended(control):
    (release,) = control.releases
    return release.outcome, release.usage.output_tokens


async def test_a_complete_answer_is_written_and_recorded():
    control, worker, reader = Control("a"), Worker(ROLE, text(1), text(2)), Reader()
    await relay(control, {"a": worker}, reader).carry()
    assert reader.tokens == 2
    assert ended(control) == ("completed", 2)
    assert [report.started for report in control.reports] == [True, True]
    assert worker.closed


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answered_call_is_freed_without_a_collection_of_garbage(stream):
    """Those that waited long would stay until a collection of all objects."""
    control, workers = Control("a"), {"a": Worker(ROLE, text(1), text(2))}

    async def send(message):
        pass

    gc.disable()
    try:
        producer = Producer(relay(control, workers, stream=stream), 10.0)
        sink = ConnectionSink(send, ClientLimits())
        freed = [weakref.ref(each) for each in (producer, producer._relay, producer._call, sink)]
        await producer.produce(sink)
        await sink.finish()
        assert producer.succeeded
        workers.clear()
        control.on_message = None
        del producer
        assert [ref() for ref in freed] == [None, None, None, sink]
        del sink
        assert freed[-1]() is None
    finally:
        gc.enable()


async def test_new_output_is_reported_within_a_moment():
    control, worker = Control("a"), Worker(ROLE, text(1), text(2), text(3), "wait")
    carrying = asyncio.create_task(relay(control, {"a": worker}, Reader()).carry())
    await until(lambda: control.reports and control.reports[-1].usage.output_tokens == 3)
    assert len(control.reports) == 3, "start, first output, and the others together"
    worker.receiver.ended()
    await carrying


async def test_an_answer_completes_only_with_a_durable_row():
    control = Control("a")
    control.in_file.clear()
    each = relay(control, {"a": Worker(text(1))}, Reader())
    carrying = asyncio.create_task(each.carry())
    await until(lambda: control.releases)
    await settle()
    assert (carrying.done(), each.call.state) == (False, "complete")
    control.in_file.set()
    await carrying
    assert each.call.state == "ended"


@pytest.mark.parametrize("shared", [True, False])
async def test_a_client_sees_the_finish_reason_after_the_end_is_kept_if_servers_share_an_order(
    shared,
):
    """Its next call, at another server, would else be in the order before this end."""
    control, reader = Control("a"), Reader()
    control.shared = shared
    control.in_file.clear()
    carrying = asyncio.create_task(
        relay(control, {"a": Worker(ROLE, text(1), text(2), END)}, reader).carry()
    )
    await until(lambda: control.releases)
    await settle()
    assert reader.tokens == 2
    assert (b'"finish_reason":"stop"' in reader.body) is not shared
    control.in_file.set()
    await carrying
    assert reader.body.count(b'"finish_reason":"stop"') == 1


@pytest.mark.parametrize(
    "failing",
    [
        Worker(WorkerUnavailableError("no connection", unreachable=True)),
        Worker(ROLE, WorkerStreamError("broken")),
        None,
    ],
    ids=["unreachable", "after the role", "gone"],
)
async def test_a_call_that_fails_before_the_first_token_is_retried(failing):
    control, reader = Control("a", "b"), Reader()
    workers = {"b": Worker(ROLE, text(1)), **({} if failing is None else {"a": failing})}
    await relay(control, workers, reader).carry()
    first, second = control.releases
    assert first.retry_on_another_worker
    assert (second.outcome, second.usage.output_tokens, reader.tokens) == ("completed", 1, 1)


async def test_a_call_that_has_ended_moves_to_no_worker():
    """A gateway names the worker that served it while control still takes the end."""
    control, other = Control("a"), Worker("wait")
    worker, release, taken = Worker("wait"), control.release, asyncio.Event()

    async def slowly(message):
        await taken.wait()
        return await release(message)

    control.release, control.moved = slowly, lambda call_id, worker_id: True
    each = relay(control, {"a": worker}, Reader())
    carrying = asyncio.create_task(each.carry())
    await worker.waiting.wait()
    worker.receiver.failed(WorkerRejectedError(400, {"message": "no"}))
    await settle()
    each.moved("b", other, None)
    taken.set()
    with pytest.raises(FairServeError):
        await carrying
    await settle()
    assert not other.waiting.is_set()


async def test_a_retry_without_a_worker_ends_the_call():
    control = Control("a")
    with pytest.raises(FairServeError) as raised:
        await relay(control, {"a": Worker(WorkerUnavailableError("x"))}).carry()
    assert raised.value.code == "call_stopped"
    assert len(control.releases) == 1


async def test_a_final_failure_is_raised():
    control = Control("a")
    rejected = WorkerRejectedError(400, {"message": "no tools", "param": "tools"})
    with pytest.raises(FairServeError) as raised:
        await relay(control, {"a": Worker(rejected)}).carry()
    assert (raised.value.status, raised.value.param) == (400, "tools")
    assert ended(control) == ("failed", 0)


async def test_a_lagging_reader_pauses_its_worker():
    control, reader = Control("a"), Reader()
    worker = Worker(text(1), text(2), text(3))
    reader.is_full = True
    carrying = asyncio.create_task(relay(control, {"a": worker}, reader).carry())
    await until(lambda: worker.paused)
    await settle()
    assert reader.tokens == 1
    reader.is_full = False
    reader.on_space()
    await carrying
    assert reader.tokens == 3


async def test_an_answer_that_cannot_be_written_has_failed():
    class Broken(Reader):
        def write(self, body):
            raise KeyError("x")

    control, worker = Control("a"), Worker(text(1), text(2))
    with pytest.raises(KeyError):
        await relay(control, {"a": worker}, Broken()).carry()
    assert (ended(control)[0], control.releases[0].error) == ("failed", "internal error: KeyError")
    assert worker.closed


@pytest.mark.parametrize("script", [(), (ROLE,), (ROLE, text(1))])
async def test_a_cancelled_call_is_released_at_once(script):
    control, worker = Control("a"), Worker(*script, "wait")
    each = relay(control, {"a": worker}, Reader())
    carrying = asyncio.create_task(each.carry())
    await worker.waiting.wait()
    carrying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await carrying
    assert ended(control) == ("cancelled", len(script) // 2)
    assert control.releases[0].error == "client disconnected"
    assert worker.closed


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("how", ["client", "control", "lease"])
async def test_a_prompt_that_a_worker_may_have_begun_is_used_if_the_client_ends_the_call(
    how, begun
):
    """A worker that reports nothing before its first output could else be had for nothing."""
    control, worker = Control("a"), Worker("wait")
    worker.may_have_begun = begun
    carrying = asyncio.create_task(relay(control, {"a": worker}, Reader()).carry())
    await worker.waiting.wait()
    if how == "client":
        carrying.cancel()
    else:
        outcome = "cancelled" if how == "control" else "failed"
        control.on_message(Cancel("call", outcome, "it ends"))
    await asyncio.gather(carrying, return_exceptions=True)
    assert ended(control) == ("failed" if how == "lease" else "cancelled", 0)
    used = 4 if begun and how != "lease" else 0
    assert control.releases[0].usage.prompt_tokens == used


@pytest.mark.parametrize("script", [(ROLE,), (ROLE, text(1))])
async def test_control_stops_a_call_at_its_worker(script):
    control, worker = Control("a", "b"), Worker(*script, "wait")
    workers = {"a": worker, "b": Worker(text(1))}
    carrying = asyncio.create_task(relay(control, workers, Reader()).carry())
    await worker.waiting.wait()
    control.on_message(Cancel("call", "cancelled", "its run was cancelled"))
    with pytest.raises(FairServeError, match="its run was cancelled"):
        await carrying
    assert ended(control)[0] == "cancelled", "it is not tried on another worker"


async def test_a_call_without_a_lease_is_stopped():
    control, reader = Control("a"), Reader()
    control.lease = False
    with pytest.raises(FairServeError, match="lease has ended"):
        await relay(control, {"a": Worker(ROLE, text(1))}, reader).carry()
    assert (ended(control)[0], reader.body) == ("failed", b"")


async def test_a_call_that_waits_inside_its_worker_keeps_its_lease():
    control, worker = Control("a", lease_s=0.02), Worker("wait")
    each = relay(control, {"a": worker})
    carrying = asyncio.create_task(each.carry())
    await until(lambda: len(control.reports) > 2)
    assert not any(report.started for report in control.reports)
    carrying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await carrying
    assert each._lease_timer is each._report_timer is None, "no sign of life after the end"


async def test_a_call_at_a_lost_hung_worker_is_served_by_another():
    control = Control("a", "b", lease_s=0.02)
    workers = {"a": Worker("wait"), "b": Worker(ROLE, text(1))}
    carrying = asyncio.create_task(relay(control, workers, Reader()).carry())
    await workers["a"].waiting.wait()
    del workers["a"]
    await carrying
    assert [r.retry_on_another_worker for r in control.releases] == [True, False]


# --- a gateway's calls ---------------------------------------------------------------------------------


class Queue(QueuedClient):
    """A local queue with one place before a worker, whose clock does not move."""

    def __init__(self, worker):
        super().__init__(worker, LocalQueue(Dlpm(), 1, 4096), lambda: 0.0)

    @property
    def counts(self):
        return self.queue.waiting, self.queue.sent


async def test_a_queued_call_waits_renews_its_lease_and_is_sent_by_the_transport():
    control, inner = Control("a", lease_s=0.02), Worker("wait")
    queue, transport = Queue(inner), lambda request, answer: None
    inner.may_have_begun = True
    before = queue.send(relay(control, {}).call.granted(control.grant()), Worker())
    control.workers = ["a"]
    carrying = asyncio.create_task(relay(control, {"a": queue}, transport=transport).carry())
    await until(lambda: queue.counts == (1, 1) and len(control.reports) > 2)
    assert before.may_have_begun
    before.close()
    await until(lambda: inner.transport is transport)
    assert queue.counts == (0, 1)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    assert queue.counts == (0, 0)


@pytest.mark.parametrize("how", ["client", "control"])
async def test_a_call_that_ends_while_it_waits_leaves_the_queue(how):
    control, inner = Control("a"), Worker("wait")
    inner.may_have_begun = True
    queue = Queue(inner)
    queue.send(relay(control, {}).call.granted(control.grant()), Worker())
    control.workers = ["a"]
    carrying = asyncio.create_task(relay(control, {"a": queue}).carry())
    await until(lambda: queue.counts == (1, 1))
    if how == "client":
        carrying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await carrying
    else:
        control.on_message(Cancel("call", "cancelled", "an operator cancelled the run"))
        with pytest.raises(FairServeError, match="an operator"):
            await carrying
    assert ended(control)[0] == "cancelled"
    assert control.releases[0].usage.prompt_tokens == 0, "it was not sent"
    assert queue.counts == (0, 1)


async def test_a_gateway_sends_a_call_once():
    control, worker = Control("a", "b"), Worker("wait")
    each = relay(control, {"a": worker, "b": Worker(text(1))}, Reader())
    carrying = asyncio.create_task(each.carry())
    await worker.waiting.wait()
    each.is_last = True
    worker.receiver.failed(WorkerUnavailableError("busy", cause="busy"))
    with pytest.raises(FairServeError, match="no worker could begin"):
        await carrying
    assert [r.retry_on_another_worker for r in control.releases] == [False]
