"""A stream that is silent is kept alive: before its first output, and after."""

import asyncio

from fairserve.engine.wire.base import WorkerChunk
from fairserve.interactions.call import Call
from fairserve.platform.control.messages import Grant, Submit
from fairserve.platform.fleet.models import ServedModel
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.completions.requests import CHAT, read_fields
from fairserve.platform.serving.completions.running_call import RunningCall
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.messages.writer import MessageWriter

DEADLINE_S = 30
THOUGHT = {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]}
ANSWER = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}


class Relay:
    """Carries a call whose worker thinks until the test lets it answer."""

    def __init__(self, call):
        self.call, self.reader = call, None
        self.answers = asyncio.Event()

    def headers(self):
        return {}

    async def carry(self):
        self.call.granted(Grant("call", "w1", "tenant/user", 1.0, 0.0, 60.0))
        self.reader.write(self.call.received([WorkerChunk(THOUGHT)], 1.0))
        await self.answers.wait()
        self.reader.write(self.call.received([WorkerChunk(ANSWER)], 2.0))
        self.call.completed()
        self.call.recorded()


class Sink:
    """Keeps what is written; ``kept_alive`` is set with the first ping."""

    lost, is_full = "", False

    def __init__(self):
        self.written, self.kept_alive = [], asyncio.Event()

    def start(self, status, headers):
        self.written.append(status)

    def write(self, body):
        self.written.append(body)
        if body == MessageWriter.keep_alive:
            self.kept_alive.set()


async def test_a_message_whose_thinking_is_omitted_is_kept_alive_while_the_model_thinks():
    call = Call("call", "t", "app", "u", "app/run", "m", 4, 0, 20)
    model = ServedModel(("m",), "m", 100, reader=None)
    checked = CheckedCall(Submit(call, "row"), "call", model, "m")
    messages = [{"role": "user", "content": "ok"}]
    request = read_fields(CHAT, {"model": "m", "messages": messages, "stream": True})
    writer = MessageWriter(checked, show_thinking=False)
    relay, sink = Relay(RunningCall(request, checked, writer, 0.0)), Sink()
    producing = asyncio.create_task(Producer(relay, 0.001).produce(sink))
    async with asyncio.timeout(DEADLINE_S):
        await sink.kept_alive.wait()
        relay.answers.set()
        await producing
    status, begin, *_, answer, end = sink.written
    assert (status, b"message_start" in begin) == (200, True)
    assert b"text_delta" in answer
    assert b"message_stop" in end
