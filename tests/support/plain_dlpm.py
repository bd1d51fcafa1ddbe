"""A naive DLPM by its specification: the reference of the incremental one."""

import functools


@functools.lru_cache(maxsize=4096)
def prefixes(path):
    return tuple(path[:end] for end in range(1, len(path) + 1))


class PlainDlpm:
    """The rules of the specification; only deficits and bypasses are kept between passes."""

    def __init__(self, options, tokens):
        self.options, self.tokens = options, tokens
        self.q, self.waiting, self.running = {}, {}, {}
        self.paid, self.bypassed, self.arrivals = set(), {}, 0

    def add(self, call):
        self.arrivals += 1
        call.arrival = self.arrivals
        self._wait(call)

    def _wait(self, call):
        self.waiting[call.call_id] = call
        self.bypassed[call.call_id] = 0
        for prefix in prefixes(call.path):
            self.q.setdefault(prefix, 0.0)

    def charge(self, call, cost):
        for prefix in prefixes(call.path):
            self.q[prefix] -= cost / call.weight

    def decoded(self, call_id, tokens):
        self.charge(self.running[call_id], self.options.wq * tokens)

    def finish(self, call_id):
        call = self.running.pop(call_id, None) or self.waiting.pop(call_id)
        self.paid.discard(call_id)
        here = [each.path for each in [*self.running.values(), *self.waiting.values()]]
        for prefix in reversed(prefixes(call.path)):  # idle and in credit: evicted
            busy = any(path[: len(prefix)] == prefix for path in here)
            below = any(len(p) > len(prefix) and p[: len(prefix)] == prefix for p in self.q)
            if busy or below or self.q[prefix] <= 0:
                break
            del self.q[prefix]

    def requeue(self, call_id):
        self._wait(self.running.pop(call_id))

    def refill(self):
        """Execute Algorithm 1 lines 3-8 literally for every group of siblings."""
        while True:
            waiting = {p for call in self.waiting.values() for p in prefixes(call.path)}
            due = {p[:-1] for p in waiting} - {p[:-1] for p in waiting if self.q[p] > 0}
            if not due:
                return
            for parent in due:
                self.refill_below(parent)

    def refill_below(self, parent):
        """Execute Algorithm 1 lines 6-7 among siblings."""
        for prefix in self.q:
            if prefix[:-1] == parent and self.q[prefix] <= 0:
                self.q[prefix] += self.options.quantum

    def eligible(self, call):
        return all(self.q[prefix] > 0 for prefix in prefixes(call.path))

    def rounds(self, call):
        needed = []
        for prefix in prefixes(call.path):
            q, rounds = self.q[prefix], 0
            while q <= 0:
                q, rounds = q + self.options.quantum, rounds + 1
            needed.append(rounds)
        return needed

    def may_advance(self, call):
        return all(self.q[prefix] > -self.options.stuck_advance for prefix in prefixes(call.path))

    def walk(self):
        """Yield calls, and None at the end; receive cached tokens, or None if a call does not fit."""
        limit = self.options.max_bypass
        self.admitted, skipped = 0, []
        exhausted = {i for i, passed in self.bypassed.items() if limit and passed >= limit}
        order = sorted(
            self.waiting.values(),
            key=lambda call: (call.call_id not in exhausted, -self.tokens(call), call.arrival),
        )

        def offer(call):
            order.remove(call)
            cached = yield call
            if cached is not None:
                self.admit(call, cached)
            else:
                skipped.append(call)
            yield
            stop = cached is None and 0 < limit <= self.bypassed[call.call_id] + self.admitted
            return cached is not None, stop

        def walk_on():
            """Walk over the clients in credit, to the end and then from the top again."""
            at = 0
            while order:
                self.refill()
                ahead = [call for call in order[at:] if self.eligible(call)]
                if ahead:
                    at = order.index(ahead[0])
                    _, stop = yield from offer(ahead[0])
                    if stop:
                        return True
                elif at:
                    at = 0
                else:
                    return False
            return True

        def walk_past_stuck():
            for call in sorted(filter(self.may_advance, order), key=self.rounds):
                admitted, stop = yield from offer(call)
                if admitted or stop:
                    return stop
            return True

        try:
            over = False
            while not over:
                over = yield from walk_on()
                if not over:
                    over = not self.options.refill_when_stuck or (yield from walk_past_stuck())
        finally:
            for call in skipped:
                self.bypassed[call.call_id] += self.admitted

    def admit(self, call, cached):
        self.running[call.call_id] = self.waiting.pop(call.call_id)
        del self.bypassed[call.call_id]
        self.admitted += 1
        if call.call_id not in self.paid:
            self.paid.add(call.call_id)
            self.charge(call, self.options.we * max(0, call.prompt_tokens - cached))
