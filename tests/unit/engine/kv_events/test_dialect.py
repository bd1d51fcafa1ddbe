"""The dialect of KV events agrees with handwritten bytes and with vLLM's structs."""

import struct

import msgspec
import pytest

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events.dialect import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvBatch,
    KvEventsError,
)

NIL, TRUE_HASH = b"\xc0", b"\xcf\xff\x00\x00\x00\x00\x00\x00\x01"


def text(value):
    return bytes([0xA0 | len(value)]) + value.encode()


def field(name, packed):
    return text(name) + packed


TIME = b"\xcb" + struct.pack(">d", 1.5)
STORED_MAP = b"".join(
    [
        b"\x89",  # a map of nine entries
        field("type", text("BlockStored")),
        field("block_hashes", b"\x92" + TRUE_HASH + b"\x07"),
        field("parent_block_hash", NIL),
        field("token_ids", b"\x94\x01\x02\xcd\x01\x00\x04"),
        field("block_size", b"\x02"),
        field("lora_id", NIL),
        field("medium", text("GPU")),
        field("lora_name", NIL),
        field("extra_keys", b"\x92\x91" + text("salt") + NIL),
    ]
)
REMOVED_MAP = b"".join(
    [
        b"\x83",
        field("type", text("BlockRemoved")),
        field("block_hashes", b"\x91\x07"),
        field("medium", text("GPU")),
    ]
)
CLEARED_MAP = b"\x81" + field("type", text("AllBlocksCleared"))
PAYLOAD = b"\x93" + TIME + b"\x93" + STORED_MAP + REMOVED_MAP + CLEARED_MAP + b"\x00"

STORED = BlockStored(
    [0xFF00000000000001, 7], None, [1, 2, 256, 4], 2, medium="GPU", extra_keys=[["salt"], None]
)
EVENTS = [STORED, BlockRemoved([7], "GPU"), AllBlocksCleared()]


def test_a_batch_of_vllm_is_decoded():
    assert dialect.decode(PAYLOAD) == KvBatch(1.5, EVENTS, 0)
    assert dialect.encode(KvBatch(1.5, EVENTS)) == PAYLOAD


def test_only_fields_with_defaults_are_omitted():
    plain = msgspec.msgpack.decode(
        dialect.encode(KvBatch(0.0, [BlockStored([1], 5, [9], 1), BlockRemoved([1])]))
    )
    assert set(plain[1][0]) == {
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name",
    }  # fmt: skip
    assert set(plain[1][1]) == {"type", "block_hashes", "medium"}


def test_older_forms_and_unknown_fields_are_accepted():
    pack = msgspec.msgpack.encode
    older = [1.5, [["BlockStored", [1], None, [9, 8], 2, None], ["BlockRemoved", [1]]]]
    expected = [BlockStored([1], None, [9, 8], 2), BlockRemoved([1])]
    assert dialect.decode(pack(older)) == KvBatch(1.5, expected)
    assert dialect.decode(pack([2, [["AllBlocksCleared"]], 3])).events == [AllBlocksCleared()]
    as_map = {"ts": 1.5, "events": [{"type": "BlockRemoved", "block_hashes": [b"digest"], "x": 1}]}
    assert dialect.decode(pack(as_map)) == KvBatch(1.5, [BlockRemoved([b"digest"])])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.5, [{"type": "BlockMoved"}]], "unknown event 'BlockMoved'"),
        ([1.5, [{"type": "BlockRemoved"}]], "block_hashes"),
        ([1.5, [{"type": "BlockRemoved", "block_hashes": ["x"]}]], "block_hashes"),
        ([1.5, [["BlockStored", [1], None, [9], 2, None]]], "1 blocks of 2 with 1 tokens"),
        ([1.5, [["BlockStored", [1], None, [], 0, None]]], "blocks of 0"),
        ([1.5, [["BlockStored", [1], None, [9], 1, None, None, None, []]]], "0 extra keys"),
        ([1.5, [["BlockStored", [1, 1], None, [9, 9], 1, None]]], "2 blocks with a hash twice"),
        ([1.5, [["BlockStored", [1], None, [-1], 1, None]]], "token_ids"),
        ([1.5, [["BlockStored", [1], None, [1 << 32], 1, None]]], "token_ids"),
        ([1.5], "cannot be read"),
        ("batch", "cannot be read"),
        ([None, []], "cannot be read"),
        ([1.5, [7]], "cannot be read"),
        ([1.5, [[]]], "cannot be read"),
    ],
)
def test_invalid_events_are_errors(value, message):
    with pytest.raises(KvEventsError, match=message):
        dialect.decode(msgspec.msgpack.encode(value))


def test_invalid_msgpack_is_an_error():
    with pytest.raises(KvEventsError, match="cannot be read"):
        dialect.decode(b"\xc1")


def test_frames_are_parsed():
    seven = b"\0\0\0\0\0\0\0\x07"
    assert dialect.message(7, b"p", b"t") == [b"t", seven, b"p"]
    assert dialect.replay_request(7) == [b"", seven]
    assert dialect.replay_start([b"", seven]) == 7
    assert dialect.replay_answer(dialect.END, b"") == [b"", b"", b"\xff" * 8, b""]
    assert dialect.read([b"t", seven, b"p"]) == (7, b"p")
    assert dialect.read([b"", b"t", seven, b"p"]) == (7, b"p"), "replayed, with its topic"
    assert dialect.read([b"", seven, b"p"]) == (7, b"p"), "and without"
    assert dialect.read([b"", b"\xff" * 8, b""]) == (dialect.END, b"")
    for frames in ([], [b"p"], [b"", b"7", b"p"]):
        with pytest.raises(KvEventsError):
            dialect.read(frames)
    for frames in ([b""], [b"x", seven], [b"", b"7"], [b"", seven, b""]):
        with pytest.raises(KvEventsError):
            dialect.replay_start(frames)


def test_vllm_and_this_dialect_decode_each_other():
    theirs = pytest.importorskip("vllm.distributed.kv_events", reason="vllm is not installed")
    stored = theirs.BlockStored(
        block_hashes=STORED.block_hashes, parent_block_hash=None, token_ids=STORED.token_ids,
        block_size=2, lora_id=None, medium="GPU", lora_name=None, extra_keys=[("salt",), None],
    )  # fmt: skip
    removed = theirs.BlockRemoved(block_hashes=[7], medium="GPU")
    batch = theirs.KVEventBatch(ts=1.5, events=[stored, removed, theirs.AllBlocksCleared()])
    batch.data_parallel_rank = 0
    assert dialect.decode(msgspec.msgpack.encode(batch)) == KvBatch(1.5, EVENTS, 0)
    read = msgspec.msgpack.decode(dialect.encode(KvBatch(1.5, EVENTS)), type=theirs.KVEventBatch)
    assert read == batch
