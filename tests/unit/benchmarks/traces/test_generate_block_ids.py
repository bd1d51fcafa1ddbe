"""Test the chained block ids of generated prompts, and lengths around a mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.benchmarks.traces.generate.block_ids import BlockIds
from fairserve.benchmarks.traces.generate.token_lengths import TokenLengths


def ids(prefix):
    return [block for start, count in prefix.blocks for block in range(start, start + count)]


def test_a_prompt_has_an_id_for_each_full_block():
    blocks = BlockIds(16)
    prefix = blocks.empty
    for tokens, full in [(10, 0), (6, 1), (15, 1), (40, 4)]:
        prefix = blocks.extend(prefix, f"content-{prefix.tokens}", tokens)
        assert len(ids(prefix)) == full
    assert prefix.tokens == 71
    assert prefix.blocks == ((0, 4),)  # adjacent runs are merged


def test_adding_no_tokens_changes_nothing():
    blocks = BlockIds()
    assert blocks.extend(blocks.empty, "nothing", 0) is blocks.empty


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), max_size=60),
)
def test_an_id_identifies_a_whole_prefix(block_tokens, steps):
    """Compare with prompts written out token by token: ids are equal exactly for equal prefixes."""
    blocks = BlockIds(block_tokens)
    grown = [(blocks.empty, ())]
    for choice, content in steps:
        prefix, tokens = grown[choice % len(grown)]
        length = {"a": 1, "b": 7, "c": 23}[content]
        written = tokens + tuple((content, i) for i in range(length))
        grown.append((blocks.extend(prefix, content, length), written))
    by_id, by_tokens = {}, {}
    for prefix, tokens in grown:
        assert prefix.tokens == len(tokens)
        assert len(ids(prefix)) == len(tokens) // block_tokens
        for index, block in enumerate(ids(prefix)):
            whole = tokens[: (index + 1) * block_tokens]
            assert by_id.setdefault(block, whole) == whole
            # Contents of one letter never merge unnoticed: (letter, position) are tokens.
            assert by_tokens.setdefault(whole, block) == block


def test_each_content_has_one_length():
    blocks = BlockIds()
    blocks.extend(blocks.empty, "x", 5)
    with pytest.raises(ValueError, match="'x' has 6 tokens here and 5 before"):
        blocks.extend(blocks.empty, "x", 6)
    with pytest.raises(ValueError, match="'x' has -1 tokens"):
        blocks.extend(blocks.empty, "x", -1)


def test_lengths_have_their_mean_and_spread():
    rng = np.random.default_rng(0)
    lengths = TokenLengths(300.0, 0.6)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(300, rel=0.02)
    assert np.std(drawn) / np.mean(drawn) == pytest.approx(0.6, rel=0.05)
    assert {TokenLengths(15.0).draw(rng) for _ in range(5)} == {15}
