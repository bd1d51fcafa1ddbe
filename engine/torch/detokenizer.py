"""Converts token ids to text incrementally, without partial characters at token boundaries.

Byte-level vocabularies (GPT-2's scheme: Llama 3, Qwen, the built-in model) are decoded from their
bytes, exactly and in constant time per token. For all others (SentencePiece with byte fallback) a
short window of tokens is decoded again with each token, and text that ends in a replacement
character is held back until it is clear whether it was a partial character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Container, Mapping
from functools import cache
from typing import Any, Protocol

_REPLACEMENT = "�"
_MAX_PENDING = 8


class Detokenizer(Protocol):
    """Detokenizer of one sequence."""

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is certain after it."""
        ...

    def flush(self) -> str:
        """Return the rest after the last token; a partial character becomes U+FFFD."""
        ...


class ByteLevelDetokenizer:
    """Detokenizer for byte-level vocabularies. ``token_bytes`` is shared by all sequences."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters completed by this token."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD if a character is incomplete."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """Detokenizer for any other tokenizer; ``decode`` converts a list of ids to text.

    ``with_text`` has the ids that have a text; others are left out, so that the window does not grow.
    The window begins with tokens whose text was returned before, because many decoders treat the
    first token of a text differently (they drop a leading space). Weakness: after ``_MAX_PENDING``
    tokens that end in U+FFFD it stops waiting, so a character after that much invalid output may be
    cut.
    """

    def __init__(self, decode: Callable[[list[int]], str], with_text: Container[int]) -> None:
        self._decode = decode
        self._with_text = with_text
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that is certain after this token."""
        if token_id not in self._with_text:
            return ""
        self._pending.append(token_id)
        new = self._pending_text()
        if not new or (new.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING):
            return ""
        self._context, self._pending = self._pending, []
        return new

    def flush(self) -> str:
        """Return all text that was held back."""
        return self._pending_text()

    def _pending_text(self) -> str:
        given = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(given) :]


class UnspacedDetokenizer:
    """Detokenizer that puts no space between added tokens; ``added`` has their texts."""

    def __init__(self, inner: Detokenizer, added: Mapping[int, str]) -> None:
        self._inner = inner
        self._added = added
        self._follows_added = False

    def push(self, token_id: int) -> str:
        """Return the text that is certain after this token."""
        text, alone = self._inner.push(token_id), self._added.get(token_id)
        if alone is not None and self._follows_added:
            text = alone
        self._follows_added = alone is not None
        return text

    def flush(self) -> str:
        """Return all text that was held back."""
        return self._inner.flush()


class DetokenizerFactory(Protocol):
    """Factory of detokenizers, one per sequence."""

    def __call__(self, *, skip_special: bool = True, spaces: bool = True) -> Detokenizer:
        """Return a new detokenizer.

        ``skip_special``: special tokens produce no text. ``spaces``: a tokenizer that puts spaces
        between tokens may also put them between special tokens.
        """
        ...


def detokenizer_factory(tokenizer: Any) -> DetokenizerFactory:
    """Return a factory of detokenizers for a transformers tokenizer."""
    token_bytes = byte_level(tokenizer)
    special = special_ids(tokenizer)
    if token_bytes is not None:
        every_byte = cache(token_bytes)

        @cache
        def output_bytes(token_id: int) -> bytes:
            return b"" if token_id in special else token_bytes(token_id)

        def of_bytes(*, skip_special: bool = True, spaces: bool = True) -> Detokenizer:
            del spaces  # there are none to leave out
            return ByteLevelDetokenizer(output_bytes if skip_special else every_byte)

        return of_bytes

    added = {each: token.content for each, token in tokenizer.added_tokens_decoder.items()}
    # A padded vocabulary has ids without a token.
    tokens = frozenset(tokenizer.get_vocab().values())
    ordinary = tokens - special

    def of_windows(*, skip_special: bool = True, spaces: bool = True) -> Detokenizer:
        def decode(ids: list[int]) -> str:
            text: str = tokenizer.decode(ids, skip_special_tokens=skip_special)
            return text

        detokenizer = WindowDetokenizer(decode, ordinary if skip_special else tokens)
        if skip_special or spaces:
            return detokenizer
        return UnspacedDetokenizer(detokenizer, added)

    return of_windows


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of a tokenizer's special tokens, also of those without a role."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(tokenizer.all_special_ids).union(
        each for each, token in added if token.special
    )


def byte_level(tokenizer: Any) -> Callable[[int], bytes] | None:
    """Return a function from token ids to bytes; None if the vocabulary is not byte-level."""
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
