"""Words that an output may not contain: their tokens, and which token is banned when."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sequences import PROMPT, adjusted, make_sequence

from fairserve.engine.torch.bad_words import MAX_BAD_WORD_TOKENS, BadWords, word_tokens

IDS = st.integers(0, 3)


@example([[1, 3]], [])
@given(st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=8), st.lists(IDS, max_size=8))
def test_a_token_is_banned_if_it_completes_a_word_of_the_output(words, output):
    expected = {
        token for token in range(4) for word in words if [*output, token][-len(word) :] == word
    }
    assert BadWords(words).banned([0, 1, *output], 2) == expected


def test_banned_tokens_have_no_probability():
    rows = torch.tensor(np.random.default_rng(0).normal(size=(2, 40)), dtype=torch.float32)
    words = BadWords([[7], [5, 6]])
    sequences = [make_sequence(bad_words=words, repetition_penalty=1.5) for _ in range(2)]
    unlimited = [make_sequence(repetition_penalty=1.5) for _ in range(2)]
    for each in (sequences[1], unlimited[1]):
        each.tokens.append(5)
    expected = adjusted(rows, unlimited, {2})
    expected[0, 7] = expected[1, 7] = expected[1, 6] = -torch.inf
    assert torch.equal(adjusted(rows, sequences, {2}), expected)


class Spelling:
    """A tokenizer that spells from a table."""

    def __init__(self, table):
        self._table = table

    def __call__(self, texts, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [self._table[text] for text in texts]}


def test_a_word_is_banned_after_a_space_too_if_it_has_own_tokens_there():
    table = {"ab": [1, 2], " ab": [3, 2], "c": [4], " c": [0, 4], "d": [5], " d": [5]}
    assert word_tokens(Spelling(table), [" ab", "c", "d"]) == [[1, 2], [3, 2], [4], [5]]


@pytest.mark.parametrize(
    ("words", "reason"),
    [([" "], "without a token"), (["x" * 200] * 6, f"1200 tokens; allowed: {MAX_BAD_WORD_TOKENS}")],
)
def test_words_need_tokens_up_to_a_bound(words, reason, byte_level):
    with pytest.raises(ValueError, match=reason):
        word_tokens(byte_level, words)


def test_the_engine_avoids_a_word(make_bench, builtin):
    def text(**more):
        bench = make_bench(builtin)
        bench.add("s", PROMPT, 20, temperature=0, **more)
        bench.run()
        return bench.text("s")

    word = text()[3:6]
    words = BadWords(word_tokens(builtin.tokenizer, [word]))
    assert word not in text(bad_words=words)
