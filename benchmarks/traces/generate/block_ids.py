"""Block ids of synthetic prompts: one allocator, so that equal ids mean equal prefixes.

A prompt is built by extending prefixes: ``extend(prefix, content, tokens)``. The same content after
the same prefix always gives the same ids; other content gets new ids from the first block that it
touches. This is the chained hashing of prefix caches (the DLPM paper's radix tree, vLLM's block
hashes) with names in place of tokens.

Weakness: two contents that happen to begin alike share nothing; a generator of prompts must extend
the common part first.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

BLOCK_TOKENS = 16
"""Tokens per block in every generated trace (the default of vLLM)."""


@dataclass(frozen=True, slots=True)
class IdPrefix:
    """Prefix of a prompt. Only an allocator creates one; it stays valid."""

    serial: int
    """Number of the prefix in its allocator."""
    tokens: int
    blocks: tuple[tuple[int, int], ...]
    """Ids of its full blocks as runs: (first id, number of ids)."""


class BlockIds:
    """Allocator of chained block ids, one per trace. O(runs of the prefix) per extension."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self.empty = IdPrefix(0, 0, ())
        """Empty prefix, with which every prompt begins."""
        self._next_id = 0
        self._prefixes = 1
        self._known: dict[tuple[int, Hashable], IdPrefix] = {}

    def extend(self, prefix: IdPrefix, content: Hashable, tokens: int) -> IdPrefix:
        """Return the prefix that continues with ``tokens`` tokens of this content.

        A last block that is not full has no id yet: it gets one with the content that fills it. 0
        tokens add nothing. Raises ValueError if tokens is negative, or if this content followed
        this prefix before with another length.
        """
        if tokens < 0:
            raise ValueError(f"{content!r} has {tokens} tokens; 0 or more are allowed")
        if tokens == 0:
            return prefix
        known = self._known.get((prefix.serial, content))
        if known is not None:
            if known.tokens != prefix.tokens + tokens:
                raise ValueError(
                    f"{content!r} has {tokens} tokens here and {known.tokens - prefix.tokens} before;"
                    " a content has one length"
                )
            return known
        total = prefix.tokens + tokens
        fresh = total // self.block_tokens - prefix.tokens // self.block_tokens
        extended = IdPrefix(self._prefixes, total, self._with_fresh(prefix.blocks, fresh))
        self._prefixes += 1
        self._known[prefix.serial, content] = extended
        return extended

    def _with_fresh(
        self, blocks: tuple[tuple[int, int], ...], fresh: int
    ) -> tuple[tuple[int, int], ...]:
        """Return the runs plus this many new ids; two adjacent runs become one."""
        if fresh == 0:
            return blocks
        start = self._next_id
        self._next_id += fresh
        if blocks and sum(blocks[-1]) == start:
            return (*blocks[:-1], (blocks[-1][0], blocks[-1][1] + fresh))
        return (*blocks, (start, fresh))
