"""Test the blocks of the simulated engine against a plain model, and the order of evictions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.simulated.block_pool import BlockPool


class PlainPool:
    """The rules of vLLM's pool over plain lists."""

    def __init__(self, blocks):
        self.free = list(range(blocks))
        self.references = dict.fromkeys(range(blocks), 0)
        self.stored = []
        """Pairs of a key and its block, the oldest first."""

    def find(self, key):
        return next((block for each, block in self.stored if each == key), None)

    def take(self, count):
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.references[block] = 1
        self.stored = [pair for pair in self.stored if pair[1] not in taken]
        return taken

    def share(self, blocks):
        for block in blocks:
            self.references[block] += 1
        self.free = [block for block in self.free if block not in blocks]

    def store(self, block, key):
        self.stored.append((key, block))

    def release(self, blocks):
        for block in blocks:
            self.references[block] -= 1
        gone = [block for block in blocks if not self.references[block]]
        full = {block for _, block in self.stored}
        last = [block for block in gone if block in full]
        self.free = [block for block in gone if block not in full] + self.free + last


steps = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.lists(st.integers(0, 5), max_size=6), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.none()),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 12))
def test_the_pool_agrees_with_the_plain_model(steps, size):
    pool, plain = BlockPool(size), PlainPool(size)
    findable, held = set(), []

    def changed(key):
        findable.symmetric_difference_update({key})

    pool.changed = changed
    for kind, what, partial in steps:
        if kind == "enter":  # a call with these keys, and some blocks that are not full yet
            hits = []
            for key in what:
                block = pool.find(key)
                assert block == plain.find(key)
                if block is None or block in hits:
                    break
                hits.append(block)
            new = len(what) - len(hits) + partial
            resting = sum(map(pool.is_free, hits))
            if new + resting > pool.free_blocks:
                continue
            pool.share(hits)
            plain.share(hits)
            taken = pool.take(new)
            assert taken == plain.take(new)
            assert not {block for call in held for block in call} & set(taken)
            for block, key in zip(taken, what[len(hits) :], strict=False):
                pool.store(block, key)
                plain.store(block, key)
            held.append(hits + taken)
        elif held:
            blocks = held.pop(what % len(held))[::-1]
            pool.release(blocks)
            plain.release(blocks)
        assert list(pool._free) == plain.free
        assert [plain.references[block] for block in range(size)] == pool._references
        assert findable == {key for key, _ in plain.stored}
        assert pool.free_blocks == sum(not plain.references[block] for block in range(size))
    for blocks in held:
        pool.release(blocks)
    assert sorted(pool.take(size)) == list(range(size))
    assert not pool._found
    assert not pool._copies
    assert not findable


def test_the_deepest_block_of_the_first_call_is_evicted_first():
    pool = BlockPool(5)
    first, second = pool.take(2), pool.take(2)
    for key, block in enumerate([*first, *second]):
        pool.store(block, key)
    pool.release(first[::-1])
    pool.release(second[::-1])
    pool.take(2)  # the one that was never used, and then the deepest of the first call
    assert [pool.find(key) is not None for key in range(4)] == [True, False, True, True]


def test_a_found_block_is_not_evicted_while_it_is_held():
    pool = BlockPool(3)
    [block] = pool.take(1)
    pool.store(block, 7)
    pool.release([block])
    pool.share([pool.find(7)])
    assert not pool.is_free(block)
    pool.take(2)
    assert pool.find(7) == block
    with pytest.raises(KeyError):
        pool.take(1)


def test_of_two_equal_blocks_the_other_is_found_after_an_eviction():
    pool = BlockPool(2)
    one, other = pool.take(2)
    pool.store(one, 7)
    pool.store(other, 7)
    assert pool.find(7) == one
    pool.release([one])
    assert pool.take(1) == [one]
    assert pool.find(7) == other
