"""Ownership of pages: free ones, cached ones, and private ones of running sequences.

Admission reserves pages, except shared ones: either the maximum that a sequence can need, or only a
part, and then it may find no page later. Pages are taken one by one as they are filled; until then
the prefix cache may use them.

Invariants: free + cached + private = usable; reserved <= free + evictable.
"""

from __future__ import annotations

import numpy as np

from fairserve.engine.torch.page_pool import PAGE_TOKENS, PagePool, pages_for
from fairserve.engine.torch.prefix_trie import PrefixTrie, TrieNode
from fairserve.engine.torch.sequence import Sequence


class PagedCache:
    """Page bookkeeping of one engine; it touches no tensor. Not thread-safe."""

    def __init__(self, usable_pages: int, trie: PrefixTrie | None = None) -> None:
        self.pool = PagePool(usable_pages)
        self.trie = trie or PrefixTrie()
        self.reserved_pages = 0
        """Number of pages that are reserved for running sequences and not taken yet."""

    @property
    def used_share(self) -> float:
        """Return the share of pages held by running sequences; idle cached pages count as free."""
        return 1 - self._idle_pages / self.pool.usable_pages

    @property
    def spare_pages(self) -> int:
        """Return the number of pages that are neither in use nor reserved."""
        return self._idle_pages - self.reserved_pages

    @property
    def _idle_pages(self) -> int:
        return self.pool.free_pages + self.trie.evictable_pages

    def match(self, sequence: Sequence) -> TrieNode:
        """Return the node where the cached prefix of a waiting sequence ends, without side effects."""
        keys = sequence.reusable_keys()
        sequence.matched = self.trie.match(sequence.salt, keys, sequence.matched)
        return sequence.matched

    def try_admit(self, sequence: Sequence, pages: int, spare_pages: int = 0) -> int | None:
        """Reserve ``pages`` for a waiting sequence, shared ones included, and lock its cached prefix.

        Returns the number of cached tokens, which count as computed. Returns None without a change
        if it does not fit now with ``spare_pages`` left for others.
        """
        node = self.match(sequence)
        needed = pages - node.depth
        available = self.spare_pages - self.trie.unlocked_on_path(node)
        if needed + spare_pages > available:
            return None
        self.trie.touch(node)
        self.trie.lock(node)
        self.reserved_pages += needed
        sequence.promised_pages = needed
        sequence.matched = None
        sequence.node = node
        sequence.page_table = np.zeros(sequence.total_pages, dtype=np.int64)
        sequence.pages = node.depth
        for each in node.path():
            sequence.page_table[each.depth - 1] = each.page
        sequence.computed_tokens = sequence.vouched_tokens = node.depth * PAGE_TOKENS
        return sequence.computed_tokens

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Take pages for the first ``tokens`` tokens of a running sequence.

        Its reserved pages are always available; returns False if it has none left and all others
        are in use or reserved.
        """
        while sequence.pages < pages_for(tokens):
            if sequence.promised_pages:
                sequence.promised_pages -= 1
                self.reserved_pages -= 1
            elif self.spare_pages <= 0:
                return False
            if self.pool.free_pages == 0:
                self.pool.free(self.trie.evict_one())
            sequence.page_table[sequence.pages] = self.pool.take()
            sequence.pages += 1
        return True

    def commit(self, sequence: Sequence) -> None:
        """Move the full verified pages of a running sequence to the prefix cache.

        If another sequence stored an equal page first, that page is used and the own one is freed.
        """
        node = sequence.node
        assert node is not None
        full = sequence.vouched_tokens // PAGE_TOKENS
        keys = sequence.page_keys(full)
        for index in range(node.depth, full):
            own = int(sequence.page_table[index])
            child = node.children.get(keys[index])
            if child is None:
                child = self.trie.insert(node, keys[index], own)
            else:
                sequence.page_table[index] = child.page
                self.pool.free(own)
            self.trie.lock_one(child)
            node = child
        sequence.node = node

    def private_pages(self, sequence: Sequence) -> list[int]:
        """Return the pages that only this running sequence holds."""
        assert sequence.node is not None
        own: list[int] = sequence.page_table[sequence.node.depth : sequence.pages].tolist()
        return own

    def release(self, sequence: Sequence) -> None:
        """End a running sequence: free its private pages, and unlock its cached ones."""
        node = sequence.node
        assert node is not None
        for page in self.private_pages(sequence):
            self.pool.free(page)
        self.reserved_pages -= sequence.promised_pages
        sequence.promised_pages = 0
        self.trie.touch(node)
        self.trie.unlock(node)
        sequence.node = None
        sequence.page_table = np.zeros(0, dtype=np.int64)
        sequence.pages = 0

    def check(self, running: list[Sequence]) -> None:
        """Assert the invariants, for tests and debugging. O(pages)."""
        nodes = list(self.trie.nodes())
        private = [page for each in running for page in self.private_pages(each)]
        held = [node.page for node in nodes] + private
        assert len(held) == len(set(held)), "a page has two owners"
        assert len(held) + self.pool.free_pages == self.pool.usable_pages, "a page leaked"
        assert self.trie.cached_pages == len(nodes)
        assert self.trie.locked_pages == sum(node.locks > 0 for node in nodes)
        for node in nodes:
            expected = sum(
                1 for each in running if each.node is not None and node in each.node.path()
            )
            assert node.locks == expected, "a lock without a holder, or the reverse"
        assert self.reserved_pages == sum(each.promised_pages for each in running)
        assert self.reserved_pages <= self._idle_pages
