"""Turns token ids into text, piece by piece, without half characters where tokens cut them.

Byte-level vocabularies (GPT-2's scheme: Llama 3, Qwen, the built-in model) are decoded from their
bytes, exactly and in constant time per token. For all others (SentencePiece with byte fallback) a
short window of tokens is decoded again with each token, and text that ends in a replacement
character is held back until it is clear whether that was half a character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

_REPLACEMENT = "�"
_MAX_PENDING = 8


class Detokenizer(Protocol):
    """A detokenizer of one sequence."""

    def push(self, token_id: int) -> str:
        """Return the text that is certain after one more token."""
        ...

    def flush(self) -> str:
        """Return the rest after the last token; half a character becomes U+FFFD."""
        ...


class ByteLevelDetokenizer:
    """A detokenizer for byte-level vocabularies. ``token_bytes`` is shared by all sequences."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD if a character was cut short."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: ``decode`` turns a list of ids into text.

    The window begins with tokens whose text was returned before, because many decoders treat the
    first token of a text differently (a leading space is dropped). Weakness: after ``_MAX_PENDING``
    tokens that end in U+FFFD it stops waiting, so a character after so much garbage may be cut.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that is certain after this token."""
        self._pending.append(token_id)
        new = self._pending_text()
        if not new or (new.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING):
            return ""
        self._context, self._pending = self._pending, []
        return new

    def flush(self) -> str:
        """Return everything that was held back."""
        return self._pending_text()

    def _pending_text(self) -> str:
        given = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(given) :]


def detokenizer_factory(tokenizer: Any) -> Callable[[], Detokenizer]:
    """Return a factory of detokenizers of single sequences for a transformers tokenizer.

    Special tokens give no text.
    """
    token_bytes = byte_level(tokenizer)
    if token_bytes is not None:
        special = frozenset(tokenizer.all_special_ids)

        @cache
        def output_bytes(token_id: int) -> bytes:
            return b"" if token_id in special else token_bytes(token_id)

        return lambda: ByteLevelDetokenizer(output_bytes)

    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=True)
        return text

    return lambda: WindowDetokenizer(decode)


def byte_level(tokenizer: Any) -> Callable[[int], bytes] | None:
    """Return a function to the bytes of each token; None if the vocabulary is not byte-level."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
    if decoder is None or decoder.get("type") != "ByteLevel":
        return None
    added: dict[int, str] = {
        token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()
    }
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}

    def token_bytes(token_id: int) -> bytes:
        if token_id in added:
            return added[token_id].encode()
        # A padded vocabulary has ids without a token.
        token: str = tokenizer.convert_ids_to_tokens(token_id) or ""
        return bytes(byte_of[character] for character in token)

    return token_bytes


def byte_characters() -> list[str]:
    """Return the character of each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
