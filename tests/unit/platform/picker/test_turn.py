"""Calls that wait in the local queue of their worker before a gateway sends them."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from until import until

from fairserve.engine.wire.base import WorkerRequest
from fairserve.engine.wire.circuit import Circuit, CircuitOptions
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.engine.wire.watched_client import WatchedClient
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.messages import Cancel, Grant
from fairserve.platform.fleet.member import Member
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.picker.sent_call import SentCall
from fairserve.platform.picker.turn import Turn
from fairserve.platform.serving.decision.placement import Placement, StopSignal
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions

CHAT = "/v1/chat/completions"


class Control:
    """Grants the workers of a script, and keeps every message."""

    def __init__(self, *workers, lease_s=60.0):
        self.workers = list(workers)
        self.lease_s = lease_s
        self.releases, self.reports = [], []
        self.lease = True

    def next(self, call_id):
        worker = self.workers.pop(0)
        return Grant(call_id, "run", 1, worker, "tenant/user", 2.0, 0.0, self.lease_s)

    async def release(self, message):
        self.releases.append(message)
        return self.next(message.call_id) if message.retry_on_another_worker else None

    def progress(self, message):
        self.reports.append(message)
        return self.lease


class Queue(QueuedClient):
    """A local queue with one place, whose clock does not move."""

    def __init__(self):
        self.scheduler = Dlpm(DlpmOptions(quantum=1000, we=1.0, wq=2.0))
        super().__init__(None, LocalQueue(self.scheduler, 1, 4096), lambda: 0.0)

    @property
    def counts(self):
        return self.queue.waiting, self.queue.sent

    @property
    def credit(self):
        """Return the credit of the only client, in tokens of output: its calls have weight 2."""
        return self.scheduler.deficit("tenant/user")


@pytest.fixture
async def queue():
    return Queue()


def worker(queue=None, *, kind="openai", worker_id="w0"):
    """Return a worker to which a gateway may send calls."""
    spec = WorkerSpec(worker_id, "http://127.0.0.1:8001", kind)
    http, circuit = HttpWorkerClient(spec.url, None, kind), Circuit(CircuitOptions())
    watched = WatchedClient(http, circuit, time.monotonic, lambda: None)
    return Member(spec, http, watched, queue, circuit, there=True)


def request_of(name):
    return WorkerRequest(CHAT, {}, name, "tenant/user", weight=2.0)


class Waiting:
    """A placed call that waits for its turn."""

    def __init__(self, control, members, name="call"):
        self.stop = StopSignal(lambda: self.turn.stop())
        checked = SimpleNamespace(record_id=name, conversation=None)
        self.placement = Placement(checked, control.next(name), self.stop, control)
        self.turn = Turn(self.placement)
        self._members = members
        self.task = asyncio.ensure_future(self.turn.wait(self._begin))

    async def _begin(self, grant):
        return await SentCall.begin(self._members[grant.worker_id], request_of(grant.call_id))


async def waits(queue, control, *others):
    """Return a call that waits behind another one, which has the queue's only place."""
    before = await queue.turn(request_of("before"))
    members = {"w0": worker(queue), **{each.worker_id: each for each in others}}
    call = Waiting(control, members)
    await until(lambda: queue.counts == (1, 1))
    return before, call


async def test_a_call_is_sent_when_the_one_before_it_has_ended(queue):
    before, call = await waits(queue, Control("w0"))
    queue.end(before)
    sent = await call.task
    assert queue.counts == (0, 1)
    credit = queue.credit
    sent.decoded(2)
    sent.decoded(3)
    assert queue.credit == credit - 3, "the output is charged once"
    sent.end()
    sent.end()
    assert queue.counts == (0, 0)


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_call_that_ends_in_its_turn_frees_the_place(queue, stopped):
    control = Control("w0")
    before, call = await waits(queue, control)
    queue.end(before)
    assert queue.counts == (0, 1), "it is next, and its task has not run yet"
    if stopped:
        for _ in range(2):
            call.stop(Cancel("call", "failed", "an operator"))
        with pytest.raises(UnavailableError, match="an operator"):
            await call.task
        assert not call.task.cancelling(), "its task may have more to do"
    else:
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task
    (release,) = control.releases
    assert release.outcome == ("failed" if stopped else "cancelled")
    assert queue.counts == (0, 0)
    assert call._members["w0"].watched.sequences == 0


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(queue):
    control = Control("w0")
    _, call = await waits(queue, control)
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    (release,) = control.releases
    assert (release.outcome, release.error) == ("cancelled", "client disconnected")
    assert queue.counts == (0, 1)


async def test_a_call_that_control_stops_while_it_waits_gets_the_reason(queue):
    control = Control("w0")
    _, call = await waits(queue, control)
    call.stop(Cancel("call", "cancelled", "an operator cancelled the run"))
    with pytest.raises(UnavailableError, match="an operator cancelled the run") as raised:
        await call.task
    assert raised.value.code == "call_stopped"
    (release,) = control.releases
    assert (release.outcome, release.error) == ("cancelled", "an operator cancelled the run")
    assert queue.counts == (0, 1)


async def test_a_waiting_call_renews_its_lease_until_it_is_lost(queue):
    control = Control("w0", lease_s=0.02)
    _, call = await waits(queue, control)
    await until(lambda: len(control.reports) > 2)
    assert not any(report.started for report in control.reports)
    control.lease = False
    with pytest.raises(UnavailableError, match="its lease has ended"):
        await call.task
    assert queue.counts == (0, 1)
    before = len(control.reports)
    await asyncio.sleep(0.02)
    assert len(control.reports) == before


async def test_a_call_whose_worker_is_lost_while_it_waits_gets_another_one(queue):
    control, other = Control("w0", "w1"), worker(kind="vllm", worker_id="w1")
    _, call = await waits(queue, control, other)
    queue.requeue("the worker was lost")
    sent = await call.task
    assert sent.member is other
    (release,) = control.releases
    assert release.retry_on_another_worker
    assert release.error == "w0: the worker was lost"
    assert queue.counts == (0, 1), "the call that was sent stays"
    assert other.watched.sequences == 1


async def test_a_call_that_no_worker_may_get_is_rejected(queue):
    control = Control("w0", "w0", "w0")
    _, call = await waits(queue, control)
    for number in range(3):
        await until(lambda number=number: len(control.releases) == number and queue._turns)
        queue.requeue("the worker was lost")
    with pytest.raises(UnavailableError, match="no worker could begin"):
        await call.task
    assert [each.retry_on_another_worker for each in control.releases] == [True, True, False]
    assert queue.counts == (0, 1)


@pytest.mark.parametrize(("retry_after", "pause_s"), [("7", 7.0), ("", 1.0)])
async def test_a_worker_that_requests_a_pause_gets_one(queue, retry_after, pause_s):
    sent = await SentCall.begin(worker(queue), request_of("call"))
    error = sent.failure(429, {"retry-after": retry_after}, b"")
    assert error.cause == "busy"
    assert queue.paused_s == pause_s
    sent.end()
    assert queue.counts == (0, 0)
    again = asyncio.ensure_future(SentCall.begin(worker(queue), request_of("next")))
    await until(lambda: queue.counts == (1, 0))
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)


@pytest.mark.parametrize("queued", [True, False])
async def test_a_call_starts_with_its_header_only_where_it_had_its_turn(queue, queued):
    """A worker behind a local queue has no queue that counts; any other one may queue the call."""
    member = worker(queue) if queued else worker(kind="vllm")
    sent = await SentCall.begin(
        member, WorkerRequest(CHAT, {"stream": True}, "call", "tenant/user")
    )
    started = []
    sent.on_started = lambda: started.append(True)
    sent.was_sent()
    assert not started
    sent.answering()
    assert bool(started) == queued
    sent.began()
    assert started == [True]
    sent.end()
