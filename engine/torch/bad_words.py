"""Words that an output may not contain, as token ids, with vLLM's meaning.

Only the last token of a word is banned, while the output ends with the tokens before it. A word that
the model spells with other tokens is not recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 200
MAX_BAD_WORD_TOKENS = 1024
"""Maximum tokens of all words, which bounds the work of a step."""


class BadWords:
    """Words of one call. It has no state, so all samples share it."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        """``words`` are token ids, each word with at least one."""
        self._last: dict[int, dict[tuple[int, ...], set[int]]] = {}
        """Last tokens of the words by number of the tokens before, and by these."""
        for word in words:
            *before, last = word
            self._last.setdefault(len(before), {}).setdefault(tuple(before), set()).add(last)

    def banned(self, tokens: list[int], start: int) -> set[int]:
        """Return the tokens that would complete a word after the output ``tokens[start:]``.

        Costs O(distinct lengths of words).
        """
        banned: set[int] = set()
        for length, words in self._last.items():
            first = len(tokens) - length
            if first >= start:
                banned |= words.get(tuple(tokens[first:]), set())
        return banned


def word_tokens(tokenizer: Any, words: Sequence[str]) -> list[list[int]]:
    """Return the token ids of words at the start of a text and, where it is one, after a space.

    Raises ValueError with the reason.
    """
    texts = [space + word.lstrip() for word in words for space in ("", " ")]
    spelled = tokenizer(texts, add_special_tokens=False)["input_ids"]
    found: list[list[int]] = []
    for alone, spaced in zip(spelled[::2], spelled[1::2], strict=True):
        if not alone:
            raise ValueError("has a word without a token")
        found.append(alone)
        # A tokenizer without a token for a space and the word's start spells the space on its own.
        if spaced and spaced[0] != alone[0] and len(spaced) == len(alone):
            found.append(spaced)
    total = sum(map(len, found))
    if total > MAX_BAD_WORD_TOKENS:
        raise ValueError(f"has {total} tokens; allowed: {MAX_BAD_WORD_TOKENS}")
    return found
