"""Text and bytes of single tokens, as used in log probabilities.

Special tokens have their written form as text. The concatenated bytes of an output's tokens are its
text; the text of a partial character is U+FFFD. Exact for byte-level vocabularies and for
SentencePiece's byte tokens; any other token is decoded as within a text (a decoder may drop the
space before the first word).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from fairserve.engine.torch.detokenizer import byte_level, special_ids

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class TokenTexts:
    """Texts of one transformers tokenizer. Each token is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        token_bytes = byte_level(tokenizer)
        self.bytes_of = cache(self._decoded if token_bytes is None else token_bytes)
        """Returns the bytes of a token id; empty for an unknown id."""

    def text_of(self, token_id: int) -> str:
        """Return the text of a token id."""
        return self.bytes_of(token_id).decode(errors="replace")

    def _decoded(self, token_id: int) -> bytes:
        token: str = self._tokenizer.convert_ids_to_tokens(token_id) or ""
        if token_id in self._special:
            return token.encode()
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is not None:
            return bytes.fromhex(byte[1])
        once: str = self._tokenizer.decode([token_id])
        twice: str = self._tokenizer.decode([token_id, token_id])
        return twice[len(once) :].encode()
