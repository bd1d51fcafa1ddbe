"""One engine in virtual time for tests of local schedulers: only the pull protocol.

A call needs its extend tokens and its longest output (``reserve=True``), or what it holds now
(``reserve=False``: the batch grows until it is full, then the last admitted call is preempted). A
step admits calls, then every running call decodes one token. Service is linear: ``wp * prompt`` at
admission, ``wq`` per token, divided by nothing.
"""

from __future__ import annotations

from fairserve.scheduling.base import LocalCall


class FixedCache:
    """Matches set per call; counts a scheduler's lookups, and publishes changes."""

    def __init__(self):
        self.matches, self.asked, self._followers = {}, 0, []

    def matched_tokens(self, call):
        return min(self.matches.get(call.call_id, 0), call.prompt_tokens - 1)

    def match(self, call):
        self.asked += 1
        return self.matched_tokens(call), call.call_id, None

    def follow(self, listener):
        self._followers.append(listener)

    def change(self, call_id, matched):
        self.matches[call_id] = matched
        for listener in self._followers:
            listener.changed(call_id)


class OneWorker:
    def __init__(self, scheduler, capacity, *, wp=1.0, wq=2.0, reserve=True, max_batch=10**9):
        self.scheduler, self.capacity, self.reserve = scheduler, capacity, reserve
        self.max_batch = max_batch
        self.wp, self.wq = wp, wq
        self.cache = FixedCache()
        self.waiting, self.running, self.held = {}, {}, {}
        self.decoded, self.prompt_paid = {}, set()
        self.service, self.order, self.ended, self.preempted = {}, [], [], []
        self.numbers = 0
        self.observe = lambda: None
        """Called after every event that may change a counter."""

    def add(self, client, prompt, output, *, longest=None, weight=1.0, matched=0, call_id=None):
        """Add a call: ``output`` is generated, at most ``longest`` (by default the same) reserved."""
        self.numbers += 1
        call_id = call_id or f"{client}-{self.numbers}"
        call = LocalCall(
            call_id, client, prompt, longest or output, weight=weight, output_tokens=output
        )
        self.cache.matches[call_id] = matched
        self.scheduler.add(call)
        self.waiting[call_id] = call
        self.service.setdefault(client, 0.0)
        self.observe()
        return call_id

    def backlogged(self):
        return {call.client_id for call in self.waiting.values()}

    def need(self, call):
        extend = call.prompt_tokens - self.cache.matched_tokens(call)
        done = self.decoded.get(call.call_id, 0)
        return extend + (call.max_output_tokens if self.reserve else done + 1)

    def fits(self, call):
        full = sum(self.held.values()) + self.need(call) > self.capacity
        return not full and len(self.running) < self.max_batch

    def admit(self):
        """Run one pass; return ``(admitted, skipped)`` ids."""
        self.scheduler.start_pass(self.cache)
        admitted, skipped = [], []
        while (call := self.scheduler.peek()) is not None:
            if not self.fits(call):
                self.scheduler.skip()
                skipped.append(call.call_id)
                continue
            self.held[call.call_id] = self.need(call)
            self.scheduler.accept(self.cache.matched_tokens(call))
            del self.waiting[call.call_id]
            self.running[call.call_id] = call
            self.decoded.setdefault(call.call_id, 0)
            self.order.append(call.call_id)
            admitted.append(call.call_id)
            if call.call_id not in self.prompt_paid:
                self.prompt_paid.add(call.call_id)
                self.service[call.client_id] += self.wp * call.prompt_tokens
            self.observe()
        return admitted, skipped

    def decode(self):
        for call_id, call in list(self.running.items()):
            if call_id not in self.running:
                continue
            self.decoded[call_id] += 1
            if not self.reserve:
                self.held[call_id] += 1
            self.scheduler.decoded(call_id, 1)
            self.service[call.client_id] += self.wq
            self.observe()
            if self.decoded[call_id] >= call.output_tokens:
                self.finish(call_id)
        while sum(self.held.values()) > self.capacity:
            self.preempt(next(reversed(self.running)))

    def preempt(self, call_id):
        call = self.running.pop(call_id)
        del self.held[call_id]
        self.preempted.append(call_id)
        self.scheduler.requeue(call_id)
        self.waiting[call_id] = call
        self.observe()

    def finish(self, call_id):
        """Remove a call that ended or was cancelled, wherever it is."""
        self.running.pop(call_id, None)
        self.waiting.pop(call_id, None)
        self.held.pop(call_id, None)
        self.scheduler.finish(call_id)
        self.ended.append(call_id)
        self.observe()

    def step(self):
        admitted, _ = self.admit()
        self.decode()
        return admitted

    def drain(self, steps=100_000):
        while self.waiting or self.running:
            steps -= 1
            assert steps, f"{len(self.waiting)} calls wait for ever"
            self.step()
