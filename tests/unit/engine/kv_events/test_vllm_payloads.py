"""KV events of vLLM 0.33 are applied for workers whose blocks are larger than the router's.

The structs are those of ``vllm/distributed/kv_events.py``, so that the test needs no vLLM.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events.view import KvView
from fairserve.scheduling.events import WorkerCached, WorkerCacheReset, WorkerEvicted
from fairserve.scheduling.locality.block_keys import BlockHasher

OURS = 16
HASHER = BlockHasher(3, OURS)
TOKENS = np.arange(1000, 1512, dtype=np.uint32)


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


def names(count, form):
    """Return hashes: the low 64 bits as an integer, or the whole digest."""
    return [(1 << 63) + n if form is int else bytes([n]) * 32 for n in range(count)]


def stored(size, count, form=int, *, first=0, **more):
    hashes = names(first + count, form)
    fields = {"lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0, **more}
    return BlockStored(
        hashes[first:],
        hashes[first - 1] if first else None,
        TOKENS[first * size : (first + count) * size].tolist(),
        size,
        session_id="run",
        **fields,
    )


def applied(view, *events):
    payload = msgspec.msgpack.encode(EventBatch(1.5, list(events), 0))
    return view.apply(dialect.decode(payload).events)


def view():
    made = KvView("w", HASHER, 1 << 16)
    made.begin(complete=True)
    return made


@pytest.mark.parametrize("form", [int, bytes])
@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize("adapter", ["", "sql"])
def test_a_prompt_matches_up_to_the_last_block_of_the_worker(size, form, adapter):
    seen = view()
    named = {"lora_id": 1, "lora_name": adapter} if adapter else {}
    each = (adapter,) if adapter else ()
    salt = [(*each, "tenant"), *[each or None] * (256 // size - 1)]
    (cached,) = applied(seen, stored(size, 256 // size, form, extra_keys=salt, **named))
    keys = HASHER.keys(TOKENS, "tenant", adapter)
    assert cached == WorkerCached("w", None, tuple(keys[: 256 // OURS]))
    rest = [each or None] * (128 // size)
    following = stored(size, 128 // size, form, first=256 // size, extra_keys=rest, **named)
    (more,) = applied(seen, following)
    parent = keys[256 // OURS - 1]
    assert more == WorkerCached("w", parent, tuple(keys[256 // OURS : 384 // OURS]))
    (gone,) = applied(seen, BlockRemoved(names(384 // size, form)[-1:], "GPU", 0))
    assert gone == WorkerEvicted("w", tuple(keys[(384 - size) // OURS : 384 // OURS]))
    assert seen.keys() == set(keys[: (384 - size) // OURS])
    assert applied(seen, AllBlocksCleared()) == [WorkerCacheReset("w", complete=True)]
    assert not seen.keys()


@pytest.mark.parametrize(
    "more",
    [
        {"lora_id": 1},
        {"lora_id": 1, "lora_name": "adapter", "extra_keys": [("adapter", ("image", 3))]},
        {"extra_keys": [(("image", 3),)]},
        {"extra_keys": [(b"digest of embeddings",)]},
        {"extra_keys": [("adapter", "tenant")]},
        {"medium": "CPU"},
        {"group_idx": 1},
    ],
)
def test_blocks_with_additional_keys_are_ignored(more):
    assert applied(view(), stored(32, 1, **more)) == []


def test_storing_a_block_again_changes_nothing():
    seen = view()
    first, again = applied(seen, stored(32, 2)), applied(seen, stored(32, 2))
    assert first == again
    assert len(seen) == 2


def test_a_block_smaller_than_a_router_block_is_no_error():
    seen = view()
    applied(seen, stored(32, 2))
    part = BlockStored([99], names(2, int)[-1], TOKENS[64:72].tolist(), 8, None, "GPU", None)
    assert applied(seen, part) == []
    assert seen.keys() == set(HASHER.keys(TOKENS[:64]))
