"""Calls that wait in the local queue of their worker before Envoy sends them."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from scripted_envoy import CHAT, HELLO, USAGE, Control, envoy_world, error_of, worker
from until import until

from fairserve.engine.wire.base import WorkerRequest
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.messages import Cancel
from fairserve.platform.envoy import decisions
from fairserve.platform.envoy.sent_call import SentCall
from fairserve.platform.envoy.turn import Turn
from fairserve.platform.serving.decision.placement import Placement, StopSignal
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions

WHOLE = {**HELLO, "stream": False}


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


@asynccontextmanager
async def queued_world(control, folder, queue):
    """Yield a world whose worker is a plain one behind this queue."""
    async with envoy_world(control, folder) as world:
        world.worker = world.pool.direct_workers["w0"] = worker(kind="openai", queue=queue)
        yield world


async def waiting(world, queue, body=HELLO):
    """Return a request that waits behind others, and the task of its decision."""
    request = world.request(body)
    before = queue.queue.waiting
    placing = asyncio.ensure_future(request.decided())
    await until(lambda: queue.queue.waiting == before + 1 or placing.done())
    assert not placing.done(), placing.result()
    return request, placing


async def test_a_call_is_sent_when_the_answer_before_it_has_ended(tmp_path, queue):
    """The place is free with the stream; the report of the end charges the output."""
    control = Control("w0", "w0")
    async with queued_world(control, tmp_path, queue) as world:
        first = world.request()
        _, _, body = await first.placed()
        assert "vllm_xargs" not in body
        second, placing = await waiting(world, queue)
        assert len(world.carried) == 1
        await first.answering()
        credit = queue.credit
        await world.progress(first.record, started=True, **{**USAGE, "output_tokens": 1})
        await until(lambda: queue.credit == credit - 1)
        await first.close()
        assert (await placing).WhichOneof("response") == "request_body"
        assert queue.counts == (0, 1)
        assert not control.releases
        credit = queue.credit
        await world.end(first.record, started=True, complete=True, **USAGE)
        await until(lambda: control.releases)
        assert queue.credit == credit - 2, "two more tokens"
        assert queue.counts == (0, 1)
        await second.close()
        await until(lambda: queue.counts == (0, 0))


@pytest.mark.parametrize("known", [True, False], ids=["length known", "chunked"])
async def test_a_whole_answer_frees_its_place_once_it_is_computed(tmp_path, queue, known):
    async with queued_world(Control("w0", "w0"), tmp_path, queue) as world:
        first = world.request(WHOLE)
        await first.placed()
        _, placing = await waiting(world, queue, WHOLE)
        await first.answering(**({"content_length": "100"} if known else {}))
        if not known:
            assert queue.counts == (1, 1)
            await first.close()
        await placing
        assert queue.counts == (0, 1)


async def test_a_stream_starts_with_its_header_where_it_had_its_turn(tmp_path, queue):
    """Its worker has no queue that counts, and nothing else reports the start before an interval."""
    async with queued_world(Control("w0"), tmp_path, queue) as world:
        request = world.request()
        await request.placed()
        assert not world.control.reports
        await request.answering()
        (report,) = world.control.reports
        assert report.started


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "half closed"])
async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(tmp_path, queue, reset):
    control = Control("w0", "w0")
    async with queued_world(control, tmp_path, queue) as world:
        await world.request().placed()
        second, placing = await waiting(world, queue)
        if reset:
            second.stream.cancel()
        else:
            await second.close()
        await until(lambda: control.releases)
        (release,) = control.releases
        assert (release.outcome, release.error) == ("cancelled", "client disconnected")
        assert queue.counts == (0, 1)
        assert (len(world.carried), len(world.calls)) == (1, 1)
        placing.cancel()


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_call_that_ends_in_its_turn_frees_the_place(queue, stopped):
    control, member = Control("w0"), worker(kind="openai", queue=queue)
    stop = StopSignal(lambda: turn.stop())
    checked = SimpleNamespace(record_id="call", conversation=None)
    turn = Turn(Placement(checked, control._next("call"), stop, control))
    before = await queue.turn(request_of("before"))
    waiting = asyncio.ensure_future(turn.wait(lambda grant: begin(member, grant)))
    await until(lambda: queue.counts == (1, 1))
    queue.end(before)
    assert queue.counts == (0, 1), "it is next, and its task has not run yet"
    if stopped:
        for _ in range(2):
            stop(Cancel("call", "failed", "an operator"))
        with pytest.raises(UnavailableError, match="an operator"):
            await waiting
        assert not waiting.cancelling(), "its task may have more to do"
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    (release,) = control.releases
    assert release.outcome == ("failed" if stopped else "cancelled")
    assert queue.counts == (0, 0)
    assert member.watched.sequences == 0


def request_of(name):
    return WorkerRequest(CHAT, {}, name, "tenant/user")


async def begin(member, grant):
    return await SentCall.begin(member, request_of(grant.call_id))


async def test_a_call_that_control_stops_while_it_waits_gets_the_reason(tmp_path, queue):
    control = Control("w0", "w0")
    async with queued_world(control, tmp_path, queue) as world:
        await world.request().placed()
        _, placing = await waiting(world, queue)
        control.on_cancel(Cancel("call", "cancelled", "an operator cancelled the run"))
        status, _, error = error_of(await placing)
        assert (status, error["code"]) == (503, "call_stopped")
        assert error["message"] == "an operator cancelled the run"
        (release,) = control.releases
        assert (release.outcome, release.error) == ("cancelled", "an operator cancelled the run")
        assert queue.counts == (0, 1)


async def test_a_waiting_call_renews_its_lease_until_it_is_lost(tmp_path, queue):
    control = Control("w0", "w0", "w1")
    async with queued_world(control, tmp_path, queue) as world:
        await world.request().placed()
        control.lease_s = 0.02
        _, placing = await waiting(world, queue)
        await until(lambda: len(control.reports) > 2)
        assert not any(report.started for report in control.reports)
        control.lease = False
        status, _, error = error_of(await placing)
        assert (status, error["message"]) == (503, "its lease has ended")
        assert queue.counts == (0, 1)
        ended, before = control.reports[0].call_id, len(control.reports)
        control.lease = True
        world.pool.direct_workers["w1"] = worker("w1")
        await world.request().placed()
        await until(lambda: len(control.reports) > before + 2)
        assert ended not in {each.call_id for each in control.reports[before:]}


async def test_a_call_whose_worker_is_lost_while_it_waits_gets_another_one(tmp_path, queue):
    control = Control("w0", "w0", "w1")
    async with queued_world(control, tmp_path, queue) as world:
        await world.request().placed()
        other = world.pool.direct_workers["w1"] = worker("w1")
        other.http.authorize("other-token")
        second = world.request()
        placing = asyncio.ensure_future(second.placed())
        await until(lambda: queue.queue.waiting == 1)
        queue.requeue("the worker was lost")
        headers, _, _ = await placing
        assert headers["authorization"] == "Bearer other-token"
        (release,) = control.releases
        assert release.retry_on_another_worker
        assert release.error == "w0: the worker was lost"
        assert queue.counts == (0, 1), "the call that was sent stays"
        assert len(other.watched.calls) == 1


async def test_a_call_that_no_worker_may_get_is_rejected(tmp_path, queue):
    control = Control("w0", "w0", "w0", "w0")
    async with queued_world(control, tmp_path, queue) as world:
        await world.request().placed()
        _, placing = await waiting(world, queue)
        for number in range(3):
            await until(lambda number=number: len(control.releases) == number and queue._turns)
            queue.requeue("the worker was lost")
        status, _, error = error_of(await placing)
        assert (status, error["code"]) == (503, "unavailable")
        assert [each.retry_on_another_worker for each in control.releases] == [True, True, False]
        assert queue.counts == (0, 1)


@pytest.mark.parametrize(("retry_after", "pause_s"), [("7", 7.0), ("", 1.0)])
async def test_a_worker_that_requests_a_pause_gets_one(tmp_path, queue, retry_after, pause_s):
    """The calls of the same tenant wait; the relay's next attempt waits with them."""
    control = Control("w0", "w0")
    async with queued_world(control, tmp_path, queue) as world:
        request = world.request()
        await request.placed()
        await world.attempt(request.record, status=429, retry_after=retry_after)
        call = world.calls.get(request.record)
        begun = await call.take_over(failed=True)
        assert (begun.failure.cause, begun.failure.status) == ("busy", 429)
        assert queue.paused_s == pause_s
        assert queue.counts == (0, 0), "the relay takes a place of its own"
        await waiting(world, queue)


async def test_a_call_that_misses_its_worker_leaves_the_queue_to_the_relay(tmp_path, queue):
    async with queued_world(Control("w0"), tmp_path, queue) as world:
        request = world.request()
        await request.placed()
        assert queue.counts == (0, 1)
        begun = await world.calls.get(request.record).take_over(failed=False)
        assert (begun.failure, queue.counts, queue.paused_s) == (None, (0, 0), 0.0)
        await request.close()
        await world.request(b"{").decided()
        assert queue.counts == (0, 0)


async def test_a_long_wait_asks_envoy_for_more_time(tmp_path, queue, monkeypatch):
    monkeypatch.setattr(decisions, "EXTEND_S", 0.01)
    async with queued_world(Control("w0", "w0"), tmp_path, queue) as world:
        first = world.request()
        await first.placed()
        second = world.request()
        answer = await second.decided()
        assert answer.WhichOneof("response") is None
        assert answer.override_message_timeout.seconds == 3600
        await first.close()
        assert (await second.answer()).WhichOneof("response") == "request_body"
