"""Keys of the prefix tree are equal only for equal prefixes, whatever prompt is crafted."""

import random

import numpy as np

from fairserve.scheduling.locality.block_keys import BlockHasher


def test_equal_keys_mean_equal_prefixes():
    rng = np.random.default_rng(0)
    hasher = BlockHasher(5)
    seen = {}
    for _ in range(3000):
        tokens = rng.integers(0, 3, size=32).astype(np.uint32)
        for n, key in enumerate(hasher.keys(tokens)):
            prefix = tokens[: (n + 1) * 16].tobytes()
            assert seen.setdefault(key, prefix) == prefix


def test_keys_are_the_documented_sums():
    """Compare with plain integers, also where the coefficients are drawn in several chunks."""
    hasher = BlockHasher(3, 7)
    tokens = np.random.default_rng(1).integers(0, 2**32, size=40_000).astype(np.uint32)
    keys = hasher.keys(tokens)
    assert len(keys) == 40_000 // 7
    coefficients = [int(c) for c in hasher._coefficients]
    total, expected = 0, []
    for position, token in enumerate(tokens[: len(keys) * 7].tolist()):
        total = (total + (token + 1) * coefficients[position]) % 2**64
        if position % 7 == 6:
            expected.append(total)
    assert keys.tolist() == expected


def test_salts_and_seeds_separate_keys():
    tokens = np.arange(160, dtype=np.uint32)
    hasher = BlockHasher(1)
    assert hasher.keys(tokens) == BlockHasher(1).keys(tokens)
    assert not set(hasher.keys(tokens)) & set(hasher.keys(tokens, "tenant-a"))
    assert not set(hasher.keys(tokens, "tenant-a")) & set(hasher.keys(tokens, "tenant-b"))
    assert not set(hasher.keys(tokens)) & set(BlockHasher(2).keys(tokens))


def test_cached_salts_are_bounded():
    hasher, tokens = BlockHasher(1), np.arange(32, dtype=np.uint32)
    first = hasher.keys(tokens, "salt 0")
    for number in range(10_000):
        hasher.keys(tokens, f"salt {number}")
    assert len(hasher._offsets) <= 4096
    assert hasher.keys(tokens, "salt 0") == first


def test_swapped_tokens_do_not_collide():
    """A sum without positions would let a crafted permutation match another tenant's prompt."""
    rng = random.Random(0)
    hasher = BlockHasher(9)
    tokens = [rng.randrange(50_000) for _ in range(64)]
    key = hasher.keys(np.array(tokens, dtype=np.uint32))[-1]
    for _ in range(200):
        rng.shuffle(tokens)
        assert hasher.keys(np.array(tokens, dtype=np.uint32))[-1] != key


def test_long_and_short_prompts_have_consistent_keys():
    hasher = BlockHasher(1)
    long = np.zeros(50_000, dtype=np.uint32)
    assert len(hasher.keys(long)) == 3125
    assert len(set(hasher.keys(long))) == 3125
    assert len(hasher.keys(long[:15])) == 0
    assert hasher.keys(long[:100]) == hasher.keys(long)[:6]
