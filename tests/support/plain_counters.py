"""Virtual counters by levels, literally as in the algorithm, without heaps."""


class PlainCounters:
    """Algorithm 2 lines 6-13 written literally, once for the children of every node."""

    def __init__(self, lift_when_idle=True):
        self.lift_when_idle = lift_when_idle
        self.value, self.reserved, self.calls, self.last_left = {}, {}, {}, {}
        self.reserved_elsewhere = {}
        """Reservations by path; a path with queued calls has their arrival numbers in ``calls``."""

    def total(self, path):
        counters = self.value, self.reserved, self.reserved_elsewhere
        return sum(counter.get(path, 0.0) for counter in counters)

    def arrivals(self, path):
        """Return the arrivals of the calls queued at or below a path."""
        return [n for p, numbers in self.calls.items() if p[: len(path)] == path for n in numbers]

    def children(self, path):
        """Return the queued children of a path."""
        depth = len(path)
        waiting = [p for p, calls in self.calls.items() if calls and len(p) > depth]
        return {p[: depth + 1] for p in waiting if p[:depth] == path}

    def arrive(self, path, number):
        for depth in range(len(path)):
            parent, node = path[:depth], path[: depth + 1]
            queued = self.children(parent)
            if node not in queued:
                self.value[node] = max(self.value.get(node, 0.0), self.level(parent))
        self.calls.setdefault(path, []).append(number)
        self.calls[path].sort()

    def level(self, parent):
        """Return the counter to which an arriving child is lifted."""
        last = self.last_left.get(parent) if self.lift_when_idle else None
        queued = [self.value[path] for path in self.children(parent)]
        return min(queued, default=self.value.get(last, 0.0))

    def elsewhere(self, path, served, reserved):
        """Apply changes of other counters; an unknown client begins as if it arrived."""
        for depth in range(len(path)):
            parent, node = path[:depth], path[: depth + 1]
            if node not in self.value:
                self.value[node] = self.level(parent)
            self.value[node] = max(0.0, self.value[node] + served)
            before = self.reserved_elsewhere.get(node, 0.0)
            self.reserved_elsewhere[node] = max(0.0, before + reserved)
            last = self.last_left.get(parent)
            if not self.children(parent) and (
                last is None or self.value[node] > self.value.get(last, 0.0)
            ):
                self.last_left[parent] = node

    def leave(self, path):
        """Remove the client's earliest call; return the arrival of its next one."""
        before = [self.children(path[:depth]) for depth in range(len(path))]
        self.calls[path].pop(0)
        for depth, queued in enumerate(before):
            if queued != self.children(path[:depth]):
                self.last_left[path[:depth]] = path[: depth + 1]
        return self.calls[path][0] if self.calls[path] else None

    def add(self, path, cost, to=None, factors=(1.0,) * 9):
        """Change the counters of the whole path."""
        counters = self.value if to is None else to
        for depth in range(len(path)):
            node = path[: depth + 1]
            counters[node] = counters.get(node, 0.0) + factors[depth] * cost

    def refund(self, path, cost):
        for depth in range(len(path)):
            node = path[: depth + 1]
            self.value[node] = max(0.0, self.value[node] - cost)

    def least(self):
        """Return the smallest counter level by level, ties by arrival."""
        path = ()
        while queued := self.children(path):
            path = min(queued, key=lambda p: (self.total(p), min(self.arrivals(p))))
        return path

    def within(self, path, slack):
        return all(
            self.total(path[: depth + 1])
            <= min(self.total(p) for p in self.children(path[:depth])) + slack
            for depth in range(len(path))
        )
