"""Converts changes of the prefix trie to KV events.

:class:`PageChanges` listens in the engine's thread, at about half a microsecond per page.
:class:`PageNames` converts its changes to events in another thread. A page's name is 64 bits of a
chained BLAKE2b over the salt and all tokens up to the page's end: the same on every worker and
after every restart. It is so short that two names are equal once in several billion pages, which
would only send a call to a less suitable worker.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence

from fairserve.engine.kv_events.dialect import (
    DEVICE_MEDIUM,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KvEvent,
)
from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.engine.torch.prefix_trie import PageTokens, PrefixTrie, TrieNode

StoredPage = tuple[int, int, str, PageTokens]
"""Stored page: node id, the parent's (0: the page begins a prompt), salt, tokens."""

PageChange = StoredPage | int | None
"""Change of a trie: a stored page, the node id of an evicted one, or None: all were removed."""

_DIGEST_BYTES = 16


def _stored(node: TrieNode) -> StoredPage:
    parent = node.parent
    assert parent is not None
    return (
        node.node_id,
        parent.node_id if parent.parent is not None else 0,
        node.salt,
        node.tokens,
    )


class PageChanges:
    """Listener that publishes the changes of one trie once per step. Belongs to the engine's thread.

    ``put`` takes the changes of a step and must not block; it returns False if its queue is full,
    even without changes. After a rejected step the whole trie is published again.
    """

    def __init__(self, put: Callable[[Sequence[PageChange]], bool]) -> None:
        self._put = put
        self._changes: list[PageChange] = []
        self._lost = False
        self._trie: PrefixTrie | None = None

    def follow(self, trie: PrefixTrie) -> None:
        """Listen to a trie, besides its other listeners."""
        assert self._trie is None
        self._trie = trie
        on_store, on_evict = trie.on_store, trie.on_evict

        def stored(node: TrieNode) -> None:
            on_store(node)
            self._changes.append(_stored(node))

        def evicted(node: TrieNode) -> None:
            on_evict(node)
            self._changes.append(node.node_id)

        trie.on_store, trie.on_evict = stored, evicted

    def flush(self) -> None:
        """Publish the changes since the last call."""
        if self._lost and self._trie is not None:
            self._changes = []
            if self._put(()):
                self._changes = [None, *map(_stored, self._trie.nodes())]
        if self._changes:
            self._lost = not self._put(self._changes)
            self._changes = []


class PageNames:
    """Names of the pages of one trie, by node id. Memory: about 150 bytes per cached page."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}

    def events(self, changes: Sequence[PageChange]) -> list[KvEvent]:
        """Return the changes of one step as events, in order; consecutive pages form one event."""
        events: list[KvEvent] = []
        run: list[StoredPage] = []
        removed: list[BlockHash] = []
        for change in changes:
            if removed and not isinstance(change, int):
                events.append(BlockRemoved(removed, DEVICE_MEDIUM))
                removed = []
            if run and not (isinstance(change, tuple) and change[1] == run[-1][0]):
                events.append(self._stored(run))
                run = []
            if change is None:
                self._digests.clear()
                events.append(AllBlocksCleared())
            elif isinstance(change, int):
                removed.append(_name(self._digests.pop(change)))
            else:
                run.append(change)
        if removed:
            events.append(BlockRemoved(removed, DEVICE_MEDIUM))
        if run:
            events.append(self._stored(run))
        return events

    def _stored(self, run: list[StoredPage]) -> BlockStored:
        _, parent, salt, _ = run[0]
        digest = self._digests[parent] if parent else _digest(salt.encode(), b"salt")
        above = _name(digest) if parent else None
        names: list[BlockHash] = []
        tokens: list[int] = []
        for node_id, _, _, page in run:
            digest = self._digests[node_id] = _digest(digest + array("I", page).tobytes())
            names.append(_name(digest))
            tokens += page
        salted = bool(salt) and not parent
        return BlockStored(
            block_hashes=names,
            parent_block_hash=above,
            token_ids=tokens,
            block_size=PAGE_TOKENS,
            medium=DEVICE_MEDIUM,
            extra_keys=[[salt], *[None] * (len(run) - 1)] if salted else None,
        )


def _digest(data: bytes, kind: bytes = b"") -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, person=kind).digest()


def _name(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")
