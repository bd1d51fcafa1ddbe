"""The lower bound of a prompt's tokens agrees with tokenizers that count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.platform.fleet.prompts.reader import PromptTooLongError, load_counter
from fairserve.platform.fleet.prompts.token_bound import chars_per_token

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(*merged, normalizer=None):
    """Return byte-level BPE with multi-letter tokens, made by merges from left to right."""
    vocabulary = {letter: number for number, letter in enumerate(ALPHABET)}
    merges = []
    for word in merged:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                merges.append((word[: end - 1], word[end - 1]))
                vocabulary[word[:end]] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


TOKENIZERS = {
    "one token for seven letters": (byte_level("aaaaaaa", "hello"), 7),
    "composed": (byte_level("aaaa", normalizer=normalizers.NFC()), 16),
}
TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="aehlo \u0301\u0345\u1100\u1161\u11a8"),
    st.integers(0, 60).map("a".__mul__),
)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens_than_the_bound(name, text):
    tokenizer, most = TOKENIZERS[name]
    assert chars_per_token(tokenizer) == most
    assert len(text) <= most * len(tokenizer.encode(text).ids)


def with_unknown():
    return Tokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True))


def words():
    return Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))


def with_white_space():
    tokenizer = byte_level("aa")
    tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        with_unknown(),
        words(),
        with_white_space(),
        byte_level("aa", normalizer=normalizers.Strip()),
        byte_level("aa", normalizer=normalizers.Replace("aaaa", "a")),
        byte_level("aa", normalizer=normalizers.NFKC()),
    ],
)
def test_there_is_no_bound_if_a_token_may_represent_any_text(tokenizer):
    assert chars_per_token(tokenizer) is None


def test_a_prompt_that_cannot_fit_is_not_tokenised(monkeypatch):
    counter = load_counter(ensure_builtin_model())
    longest = len("<|developer|>")
    assert len(counter.text("x" * longest * 10, 10).token_ids) == longest * 10, "it may have fitted"
    with pytest.raises(PromptTooLongError, match="at least 11 tokens"):
        counter.text("x" * (longest * 10 + 1), 10)
    with pytest.raises(PromptTooLongError):
        counter.chat([{"role": "user", "content": "x" * longest * 10}], None, 10)
