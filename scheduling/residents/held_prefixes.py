"""Tokens that several prompts hold together: what they share counts once.

A prompt is cut at some depths, four for each doubling. The key of a block identifies the whole prompt
up to there (:mod:`fairserve.scheduling.locality.block_keys`), so two prompts are equal up to the last
cut at which their keys are. They may share more, up to a fifth of the prompt: too much is counted,
never too little. So a prompt is also cut where its match with a worker's cache ends, if that is behind
the last of those depths: questions on one document share all of it.

Cost: O(log tokens) for each method.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

from fairserve.scheduling.locality.block_keys import BlockKeys

_MOST_BLOCKS = 1 << 24
_CUTS = tuple(
    sorted({math.floor(2 ** (step / 4)) for step in range(4 * _MOST_BLOCKS.bit_length() - 3)})
)
"""Depths at which prompts are cut, in blocks."""


class Prefix(NamedTuple):
    """A prompt, with its expected output."""

    keys: tuple[int, ...]
    """Key at each cut."""
    depth: int
    """Depth of the last cut, in blocks."""
    rest: int
    """Tokens behind the last cut, which no other prompt holds."""
    tokens: int
    """All tokens."""


def prompt_prefix(keys: BlockKeys, block_tokens: int, prompt_tokens: int) -> Prefix:
    """Return a prompt of this many tokens, the first of which are the blocks with these keys."""
    cuts = _CUTS[: bisect_right(_CUTS, len(keys))]
    depth = cuts[-1] if cuts else 0
    rest = max(0, prompt_tokens - depth * block_tokens)
    known = tuple([keys[each - 1] for each in cuts])
    return Prefix(known, depth, rest, depth * block_tokens + rest)


def prefix_of(
    prompt: Prefix, keys: BlockKeys, block_tokens: int, output_tokens: int, matched_tokens: int
) -> Prefix:
    """Return a prompt with its output, also cut where its match with a cache ends."""
    depth, rest = min(matched_tokens // block_tokens, len(keys)), prompt.rest + output_tokens
    if not prompt.keys or depth <= prompt.depth:
        return Prefix(prompt.keys, prompt.depth, rest, prompt.tokens + output_tokens)
    rest = max(0, rest - (depth - prompt.depth) * block_tokens)
    tokens = depth * block_tokens + rest
    return Prefix((*prompt.keys, keys[depth - 1]), depth, rest, tokens)


class HeldPrefixes:
    """A multiset of prefixes, and the tokens of their union."""

    def __init__(self, block_tokens: int) -> None:
        self.tokens = 0
        self._block_tokens = block_tokens
        self._holders: dict[int, int] = {}
        """By key, the number of prefixes that end there and of keys that follow it directly."""

    def would_add(self, prefix: Prefix) -> int:
        """Return the tokens of a prefix that none here holds."""
        keys, holders = prefix.keys, self._holders
        known = len(keys)
        while known and keys[known - 1] not in holders:
            known -= 1  # whoever holds a key holds those before it
        return self._beyond(prefix, known)

    def _beyond(self, prefix: Prefix, known: int) -> int:
        """Return the tokens of a prefix behind the first ``known`` cuts."""
        if known == len(prefix.keys):
            return prefix.rest
        shared = _CUTS[known - 1] if known else 0
        return prefix.tokens - shared * self._block_tokens

    def add(self, prefix: Prefix) -> None:
        """Add a prefix."""
        keys, holders = prefix.keys, self._holders
        known = len(keys)
        while known and keys[known - 1] not in holders:
            known -= 1
            holders[keys[known]] = 1
        if known:
            holders[keys[known - 1]] += 1
        self.tokens += self._beyond(prefix, known)

    def remove(self, prefix: Prefix) -> None:
        """Remove a prefix that was added."""
        keys, holders = prefix.keys, self._holders
        known = len(keys)
        while known and holders[keys[known - 1]] == 1:
            known -= 1
            del holders[keys[known]]
        if known:
            holders[keys[known - 1]] -= 1
        self.tokens -= self._beyond(prefix, known)
