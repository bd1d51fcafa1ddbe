"""The parts of a stored answer, and the keys that clients choose."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from until import settle

from fairserve.platform.base.errors import ConflictError, InvalidRequestError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.serving.completions import idempotency
from fairserve.platform.serving.completions.answer import AnswerBuffer
from fairserve.platform.serving.completions.idempotency import (
    IdempotentAnswers,
    IdempotentRequest,
    checked_key,
    follow,
)


class Sink:
    """Keeps what is written."""

    def __init__(self):
        self.written, self.is_full, self.on_space = [], False, None

    def start(self, status, headers):
        self.status = status

    def write(self, body):
        self.written.append(body)


@asynccontextmanager
async def reading(buffer, sink):
    """Follow an answer, from before the block begins until its end, which the block causes."""
    task = asyncio.create_task(follow(buffer, sink, replayed=False))
    await settle()
    yield
    await asyncio.wait_for(task, 30)


async def test_parts_joined_while_a_reader_is_midway_are_not_repeated():
    buffer, sink = AnswerBuffer(), Sink()
    buffer.start(200, {})
    buffer.write(b"abc")
    async with reading(buffer, sink):
        buffer.write(b"def")
        buffer.finish()
    assert sink.written == [b"abc", b"def"]


async def test_an_answer_beyond_the_limit_is_read_by_those_who_began():
    limit = SharedLimit(8, 1 / 2)
    buffer, sink, other = AnswerBuffer(limit, "t"), Sink(), Sink()
    buffer.start(200, {})
    buffer.write(b"abc")
    async with reading(buffer, sink):
        buffer.write(b"def")
        assert not buffer.kept
        assert limit.used == 0, "others have the room"
        await settle()
        assert sink.written == [b"abc", b"def"]
        assert not buffer._parts, "no part is kept that all have read"
        with pytest.raises(ConflictError, match="too large to be read by others"):
            await follow(buffer, other, replayed=True)
        buffer.write(b"ghi")
        buffer.finish()
    assert b"".join(sink.written) == b"abcdefghi"
    assert not other.written


async def test_an_answer_beyond_the_limit_waits_for_its_first_reader():
    buffer, sink = AnswerBuffer(SharedLimit(2, 1 / 2), "t"), Sink()
    buffer.start(200, {})
    buffer.write(b"abc")
    buffer.finish()
    async with reading(buffer, sink):
        pass
    assert sink.written == [b"abc"]
    assert not buffer._parts


async def test_a_slow_reader_gets_every_part_of_an_answer_that_is_not_kept():
    buffer, fast, slow = AnswerBuffer(), Sink(), Sink()
    slow.is_full = True
    buffer.start(200, {})
    buffer.write(b"abc")
    async with reading(buffer, fast), reading(buffer, slow):
        buffer.forget(awaits_reader=False)
        buffer.write(b"def")
        await settle()
        assert (fast.written, slow.written) == ([b"abc", b"def"], [b"abc"])
        slow.is_full = False
        slow.on_space()
        buffer.finish()
    assert slow.written == [b"abc", b"def"]
    assert not buffer._parts


class LargeAnswer:
    """Produces an answer that is larger than all room."""

    succeeded = True

    async def produce(self, sink):
        sink.whole(200, {}, b"abc")


async def test_an_answer_that_is_too_large_to_be_kept_is_not_in_the_store(monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_RUNNING_BYTES", 2)
    answers, sink = IdempotentAnswers(), Sink()
    request = IdempotentRequest("t", "app", "key", "fingerprint")
    buffer, replayed = await answers.begin(request, LargeAnswer())
    await follow(buffer, sink, replayed=replayed)
    assert sink.written == [b"abc"]
    await settle()
    assert await answers.find(request) is None


async def test_a_complete_answer_leaves_its_room_to_answers_in_progress():
    limit = SharedLimit(8, 1.0)
    buffer = AnswerBuffer(limit, "t")
    buffer.whole(200, {}, b"abc")
    assert limit.of("t") == 3
    buffer.finish()
    assert limit.used == 0
    assert (buffer.kept, buffer.body) == (True, b"abc")


@pytest.mark.parametrize("key", ["", " ", "a" * 256, "a\x00"])
def test_a_key_is_printable_and_short(key):
    with pytest.raises(InvalidRequestError):
        checked_key(key)
