"""Stored answers are read along, replayed, bounded, and never kept after a failure."""

import asyncio

import pytest

from fairserve.platform.base.errors import InvalidRequestError, UnprocessableError
from fairserve.platform.serving.completions.answer import AnswerBuffer
from fairserve.platform.serving.completions.idempotency import IdempotentAnswers, checked_key


class Producer:
    """Writes parts as far as the test allows."""

    def __init__(self, *parts, succeeds=True):
        self.parts = parts
        self.succeeded = False
        self.succeeds = succeeds
        self._allowed = asyncio.Semaphore(0)

    def allow(self, parts):
        for _ in range(parts):
            self._allowed.release()

    async def produce(self, sink):
        sink.start(200, {"a": "b"})
        for part in self.parts:
            await self._allowed.acquire()
            sink.write(part)
        self.succeeded = self.succeeds


class Sink:
    is_full = False

    def __init__(self):
        self.body = b""
        self.started = asyncio.Event()
        self.wrote = asyncio.Event()

    def start(self, status, headers):
        self.started.set()

    def write(self, body):
        self.body += body
        self.wrote.set()


async def replay(buffer, sink=None):
    sink = sink or Sink()
    await buffer.replay(sink, {})
    return sink.body


async def finish(answers, name, *parts, tenant="tenant", **more):
    producer = Producer(*parts, **more)
    producer.allow(len(parts))
    return await replay(answers.begin(tenant, "app", name, "f", producer))


async def test_early_and_late_readers_get_the_same_answer():
    answers, producer = IdempotentAnswers(), Producer(b"one", b"two", b"three")
    first, second = Sink(), Sink()
    early = asyncio.create_task(replay(answers.begin("tenant", "app", "k", "f", producer), first))
    await first.started.wait()
    assert first.body == b""
    producer.allow(1)
    await first.wrote.wait()
    midway = asyncio.create_task(replay(answers.find("app", "k", "f"), second))
    await second.wrote.wait()
    assert first.body == second.body == b"one"
    producer.allow(2)
    assert await early == await midway == b"onetwothree"
    assert await replay(answers.find("app", "k", "f")) == b"onetwothree"


async def test_a_disconnecting_reader_does_not_end_the_call():
    answers, producer = IdempotentAnswers(), Producer(b"one", b"two")
    sink = Sink()
    reader = asyncio.create_task(replay(answers.begin("tenant", "app", "k", "f", producer), sink))
    await sink.started.wait()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    producer.allow(2)
    assert await replay(answers.find("app", "k", "f")) == b"onetwo"


async def test_another_request_with_the_same_key_is_rejected():
    answers = IdempotentAnswers()
    await finish(answers, "k", b"x")
    with pytest.raises(UnprocessableError):
        answers.find("app", "k", "another")
    assert answers.find("another app", "k", "another") is None


async def test_a_failure_is_not_stored():
    answers = IdempotentAnswers()
    assert await finish(answers, "k", b"error", succeeds=False) == b"error"
    assert answers.find("app", "k", "f") is None


async def test_stored_answers_are_bounded_by_number_bytes_and_age():
    now_s = 0.0
    answers = IdempotentAnswers(retention_s=10, max_entries=3, max_bytes=100, clock=lambda: now_s)
    for n in range(5):
        await finish(answers, f"k{n}", b"x")
    assert [answers.find("app", f"k{n}", "f") is not None for n in range(5)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    await finish(answers, "big", b"x" * 99)
    assert answers.find("app", "k3", "f") is None
    assert answers.find("app", "big", "f") is not None
    await finish(answers, "too big", b"x" * 101)
    assert answers.find("app", "too big", "f") is None
    now_s = 10.1
    assert answers.find("app", "big", "f") is None


@pytest.mark.parametrize(("number", "size"), [(50, 1), (4, 60)])
async def test_a_tenant_evicts_no_answer_of_another_that_has_fewer(number, size):
    answers = IdempotentAnswers(max_entries=10, max_bytes=100)
    await finish(answers, "charged once", b"x", tenant="quiet")
    for each in range(number):
        await finish(answers, f"k{each}", b"x" * size, tenant="loud")
    assert answers.find("app", "charged once", "f") is not None
    assert answers.find("app", f"k{number - 1}", "f") is not None
    assert answers.find("app", "k0", "f") is None


async def test_parts_joined_while_a_reader_is_midway_are_not_repeated():
    buffer = AnswerBuffer()
    buffer.start(200, {})
    buffer.write(b"abc")
    reading = buffer._read()
    assert await anext(reading) == b"abc"
    buffer.write(b"def")
    buffer.finish()
    assert b"".join([part async for part in reading]) == b"def"


@pytest.mark.parametrize("key", ["", " ", "a" * 256, "a\x00"])
def test_a_key_is_printable_and_short(key):
    with pytest.raises(InvalidRequestError):
        checked_key(key)
