"""Prefix cache: a trie with one node per full page, shared by all sequences.

A child is found by the exact tuple of its page's tokens, so hash collisions cannot mix up prompts,
and every salt has a separate root, so prompts of different salts share nothing. Nodes on the path
of a running sequence are locked; of the others the least recently used leaf is evicted first.
Reading (``match``) has no side effects.

Weakness: recency is per path and ignores cost; a long prefix that was used once is evicted leaf by
leaf before a short one that was used slightly earlier.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

PageTokens = tuple[int, ...]


class TrieNode:
    """A cached page. ``depth`` counts the pages from the root, which has depth 0 and no page."""

    __slots__ = (
        "__weakref__",
        "attached",
        "children",
        "depth",
        "last_used",
        "locks",
        "node_id",
        "page",
        "parent",
        "salt",
        "tokens",
    )

    def __init__(
        self, node_id: int, salt: str, parent: TrieNode | None, tokens: PageTokens, page: int
    ) -> None:
        self.node_id = node_id
        """Unique id in the trie; an evicted page that is stored again gets a new one."""
        self.salt = salt
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[PageTokens, TrieNode] = {}
        self.locks = 0
        """Number of running sequences whose path contains this node; never more than its parent's."""
        self.last_used = 0
        self.attached = True

    def path(self) -> Iterator[TrieNode]:
        """Yield this node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


def _ignore(node: TrieNode) -> None:
    return


class PrefixTrie:
    """The trie of one engine. It owns the pages of its nodes until it evicts them.

    ``on_store(node)`` is called after a node was added, ``on_evict(node)`` after it was removed.
    Parents are stored before and evicted after their children.
    """

    def __init__(
        self,
        on_store: Callable[[TrieNode], None] = _ignore,
        on_evict: Callable[[TrieNode], None] = _ignore,
    ) -> None:
        self.on_store = on_store
        self.on_evict = on_evict
        self.version = 0
        """Version that changes with every insertion and eviction, and only then."""
        self.cached_pages = 0
        self.locked_pages = 0
        # A root exists while it has children (they refer to it) or a sequence holds it, so salts
        # without a stored page need no memory.
        self._roots: WeakValueDictionary[str, TrieNode] = WeakValueDictionary()
        self._ids = 0
        self._clock = 0
        self._leaves: list[tuple[int, int, TrieNode]] = []
        """Heap of (last_used, node_id, node), which may contain outdated entries."""

    @property
    def evictable_pages(self) -> int:
        """Return the pages that evictions could free now: below an unlocked node nothing is locked."""
        return self.cached_pages - self.locked_pages

    def match(
        self, salt: str, pages: Sequence[PageTokens], start: TrieNode | None = None
    ) -> TrieNode:
        """Return the deepest node whose path is a prefix of ``pages``; without any, the salt's root.

        ``start`` may be the result of an earlier match of the same pages; then only changes since
        are walked. No visible side effects.
        """
        node = start
        while node is not None and not node.attached:
            node = node.parent
        if node is None:
            node = self._root(salt)
        for depth in range(node.depth, len(pages)):
            child = node.children.get(pages[depth])
            if child is None:
                break
            node = child
        return node

    def insert(self, parent: TrieNode, tokens: PageTokens, page: int) -> TrieNode:
        """Add a page, which the trie then owns, below ``parent``, which has no child of these tokens."""
        assert parent.attached
        assert tokens not in parent.children
        node = self._new_node(parent.salt, parent, tokens, page)
        node.last_used = parent.last_used
        parent.children[tokens] = node
        self.cached_pages += 1
        self.version += 1
        self._offer(node)
        self.on_store(node)
        return node

    def lock_one(self, node: TrieNode) -> None:
        """Lock a node whose parent is already locked by the same holder (or is the root)."""
        if node.locks == 0 and node.parent is not None:
            self.locked_pages += 1
        node.locks += 1

    def lock(self, node: TrieNode) -> None:
        """Lock the whole path to this node against eviction until it is unlocked as often."""
        for each in node.path():
            self.lock_one(each)

    def unlock(self, node: TrieNode) -> None:
        """Undo one lock of the path to this node."""
        for each in node.path():
            assert each.locks > 0
            each.locks -= 1
            if each.locks == 0:
                self.locked_pages -= 1
                self._offer(each)

    def unlocked_on_path(self, node: TrieNode) -> int:
        """Return the pages on the path that evictions could free without a lock."""
        count = 0
        for each in node.path():
            if each.locks > 0:
                break
            count += 1
        return count

    def touch(self, node: TrieNode) -> None:
        """Mark the path to this node as used now."""
        self._clock += 1
        for each in node.path():
            each.last_used = self._clock
            self._offer(each)

    def evict_one(self) -> int:
        """Drop the least recently used unlocked leaf; return its page.

        Raises IndexError if every page is locked.
        """
        while True:
            last_used, _, node = heapq.heappop(self._leaves)
            if self._is_evictable(node) and node.last_used == last_used:
                break
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        node.attached = False
        self.cached_pages -= 1
        self.version += 1
        if parent.parent is not None:
            self._offer(parent)
        self.on_evict(node)
        return node.page

    def nodes(self) -> Iterator[TrieNode]:
        """Yield every cached page, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node

    def _root(self, salt: str) -> TrieNode:
        root = self._roots.get(salt)
        if root is None:
            root = self._new_node(salt, None, (), 0)
            self._roots[salt] = root
        return root

    def _new_node(
        self, salt: str, parent: TrieNode | None, tokens: PageTokens, page: int
    ) -> TrieNode:
        self._ids += 1
        return TrieNode(self._ids, salt, parent, tokens, page)

    def _is_evictable(self, node: TrieNode) -> bool:
        return node.attached and node.locks == 0 and not node.children and node.parent is not None

    def _offer(self, node: TrieNode) -> None:
        """Add a node to the eviction candidates."""
        if not self._is_evictable(node):
            return
        heapq.heappush(self._leaves, (node.last_used, node.node_id, node))
        if len(self._leaves) > 64 + 4 * self.cached_pages:
            self._leaves = [
                (leaf.last_used, leaf.node_id, leaf)
                for leaf in {entry[2] for entry in self._leaves}
                if self._is_evictable(leaf)
            ]
            heapq.heapify(self._leaves)
