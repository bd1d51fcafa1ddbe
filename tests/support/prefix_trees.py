"""References for tests of the prefix tree: a plain cache, and the invariants of its nodes."""

from collections import OrderedDict

BLOCK = 4
WORKERS = ["w0", "w1", "w2"]


class PlainCache:
    """One worker: an LRU of prefixes as tuples of tokens, the deepest block of a use the oldest."""

    def __init__(self, capacity):
        self.held = OrderedDict()
        self.capacity = capacity

    def insert(self, prefixes):
        for prefix in reversed(prefixes):
            self.held.pop(prefix, None)
            self.held[prefix] = None
        while len(self.held) > self.capacity:
            self.held.popitem(last=False)

    def evict(self, prefix):
        for each in [p for p in self.held if p[: len(prefix)] == prefix]:
            del self.held[each]

    def match(self, prefixes):
        return max((n + 1 for n, prefix in enumerate(prefixes) if prefix in self.held), default=0)


def prefixes_of(tokens):
    """Return the full blocks of a prompt, each as all tokens up to its end."""
    return [tuple(tokens[: (n + 1) * BLOCK]) for n in range(len(tokens) // BLOCK)]


def blocks_of(tree, worker_id):
    """Return the number of blocks that a worker holds, by the snapshot of the tree."""
    state = tree.snapshot()
    held = state["held"].get(worker_id, {"nodes": ()})
    return sum(len(state["nodes"][number][1]) for number in held["nodes"])


def check_structure(tree):
    """Check that a node's holders hold its parent, and that counts, maps and recency lists agree.

    The tree has at most three workers.
    """
    nodes = set(tree._segments.heads.values())
    assert sum(len(node.keys) for node in nodes) == len(tree)
    for key, node in tree._segments.heads.items():
        assert node.keys[0] == key
    for node in nodes:
        assert node.mask
        assert node.keys
        assert set(node.links) == {n for n in range(3) if node.mask >> n & 1}
        above = node.parent
        assert node in above.children
        if above.parent is not None:
            assert node.mask & ~above.mask == 0
            assert above.end == node.start
    for slot, cache in tree._caches.items():
        listed = [link.node for link in cache]
        assert set(listed) == {node for node in nodes if slot in node.links}
        assert cache.blocks == sum(len(node.keys) for node in listed)
        seen = set()
        for node in listed:  # children are less recently used than their parents
            assert node.parent not in seen
            seen.add(node)


def locked_blocks(tree):
    """Return the keys of the blocks that the first worker has locked, by its nodes."""
    return [key for link in tree._caches[0] if link.locks for key in link.node.keys]
