"""The bytes of consecutive tokens are the bytes of the text."""

from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.torch.token_texts import TokenTexts


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
