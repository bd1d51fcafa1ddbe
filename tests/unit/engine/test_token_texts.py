"""The bytes of consecutive tokens are the bytes of the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.engine.torch.token_texts import TokenTexts


@pytest.fixture(scope="module")
def byte_level():
    return AutoTokenizer.from_pretrained(ensure_builtin_model())


@pytest.fixture(scope="module")
def sentence_piece():
    words = {"▁Hello": 0, "▁world": 1, "wor": 2, "ld": 3, "!": 4, "▁": 5}
    vocab = words | {f"<0x{byte:02X}>": 6 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@given(text=st.text())
def test_byte_level_tokens_give_the_text(byte_level, text):
    texts = TokenTexts(byte_level)
    ids = byte_level(text, add_special_tokens=False)["input_ids"]
    assert b"".join(map(texts.bytes_of, ids)) == text.encode()


def test_byte_level_tokens_have_their_bytes(byte_level):
    texts = TokenTexts(byte_level)
    assert (texts.text_of(ord("a")), texts.text_of(0xC3)) == ("a", "\ufffd")
    assert texts.text_of(256) == "<|end|>"
    assert texts.bytes_of(300) == b""  # a padded vocabulary has ids without a token


def test_sentence_piece_tokens_have_their_bytes(sentence_piece):
    texts = TokenTexts(sentence_piece)
    ids = [0, 1, 4, 6 + 0xC3, 6 + 0xA4, 5, 2, 3]
    assert b"".join(map(texts.bytes_of, ids)).decode() == " Hello world!ä world"
    assert texts.text_of(6 + 0xC3) == "\ufffd"
    assert texts.text_of(sentence_piece.eos_token_id) == "</s>"
    assert texts.bytes_of(9999) == b""
