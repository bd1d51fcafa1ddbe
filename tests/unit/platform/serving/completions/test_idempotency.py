"""The parts of a stored answer, and the keys that clients choose."""

import pytest

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.completions.answer import AnswerBuffer
from fairserve.platform.serving.completions.idempotency import checked_key


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
