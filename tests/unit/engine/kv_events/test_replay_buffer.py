"""A publisher replays its last batches, preceded by the state that they started from."""

import random

import pytest

from fairserve.engine.kv_events.dialect import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvBatch,
    decode,
    encode,
)
from fairserve.engine.kv_events.replay import ReplayBuffer


def published(buffer, sequence, *events):
    payload = encode(KvBatch(float(sequence), list(events)))
    buffer.append(sequence, payload)
    return sequence, payload


def stored(names, parent, salt=None):
    tokens = [token for name in names for token in (name, 1000 + name)]
    extra = [[salt], *[None] * (len(names) - 1)] if salt else None
    return BlockStored(names, parent, tokens, 2, medium="GPU", extra_keys=extra)


def test_the_last_batches_are_replayed_unchanged():
    buffer = ReplayBuffer(3)
    sent = [published(buffer, n, stored([n], None)) for n in range(3)]
    assert list(buffer.since(0)) == sent
    assert list(buffer.since(2)) == sent[2:]
    assert list(buffer.since(3)) == []


def test_older_batches_are_replayed_as_a_state():
    buffer = ReplayBuffer(1)
    published(buffer, 0, stored([1, 2, 3], None, "s"), stored([4, 5], 2), stored([0], 1))
    published(buffer, 1, BlockRemoved([5, 3], "GPU"), stored([6], 4))
    last = published(buffer, 2, stored([7], None))
    (sequence, payload), *rest = buffer.since(0)
    assert sequence == 1
    assert rest == [last]
    batch = decode(payload)
    assert batch.ts == 1.0
    whole = [stored([1, 2, 4], None, "s"), stored([0], 1), stored([6], 4)]
    assert batch.events == [AllBlocksCleared(), *whole]
    assert next(buffer.since(1)) == (sequence, payload)
    assert list(buffer.since(2)) == [last]
    published(buffer, 3, AllBlocksCleared(), stored([8], None))
    published(buffer, 4, stored([9], 8))
    assert decode(next(buffer.since(0))[1]).events == [AllBlocksCleared(), stored([8], None)]


def test_the_state_is_the_result_of_all_batches():
    rng, buffer, held = random.Random(3), ReplayBuffer(4), {}
    for sequence in range(300):
        events = []
        for _ in range(rng.randint(0, 3)):
            leaves = [name for name in held if name not in held.values()]
            if leaves and rng.random() < 0.45:
                gone = rng.choice(leaves)
                del held[gone]
                events.append(BlockRemoved([gone], "GPU"))
            else:
                parent = rng.choice([None, *held])
                name = rng.randrange(1 << 31)
                held[name] = parent
                events.append(stored([name], parent))
        published(buffer, sequence, *events)
        replayed = {}
        for _, payload in buffer.since(0):
            for event in decode(payload).events:
                if isinstance(event, AllBlocksCleared):
                    replayed = {}
                elif isinstance(event, BlockRemoved):
                    for name in event.block_hashes:
                        del replayed[name]
                else:
                    above = event.parent_block_hash
                    assert above is None or above in replayed, "parents come before their children"
                    for name in event.block_hashes:
                        replayed[name] = above
                        above = name
        assert replayed == held


def test_an_empty_buffer_is_rejected():
    with pytest.raises(ValueError, match="steps is 0"):
        ReplayBuffer(0)
