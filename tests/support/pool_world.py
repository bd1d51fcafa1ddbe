"""A pool of workers before scripted servers, and a control that only records events."""

from __future__ import annotations

from received import send
from until import until

from fairserve.engine.wire.base import WorkerRequest
from fairserve.engine.wire.circuit import CircuitOptions
from fairserve.platform.control.messages import WorkerView
from fairserve.platform.fleet import watch
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.scheduling import events as ev

CIRCUIT = CircuitOptions(calls=3, probes=2, first_pause_s=0.02, last_pause_s=0.1)


def probe_often(monkeypatch):
    """Make probes follow one another almost immediately."""
    for name in ("STARTUP_PROBE_S", "REPORT_S", "SLOW_PROBE_S"):
        monkeypatch.setattr(watch, name, 0.01)


def request(word="ok", name="call", **body):
    messages = [{"role": "user", "content": f"{word} please"}]
    body = {"model": "m", "messages": messages, **body}
    return WorkerRequest("/v1/chat/completions", body, name, "tenant/user")


class PoolWorld:
    """A pool and its control; ``joined`` has the workers of control with their models."""

    def __init__(self, session, **options):
        self.events, self.joined, self.draining, self.calls, self.held = [], {}, set(), {}, {}
        self.facts, self.refuses = [], None
        self.while_asked = lambda: None
        """Called while the pool asks control for its workers."""
        self.pool = WorkerPool(self, session, self._on_facts, circuit=CIRCUIT, **options)

    def _on_facts(self, spec, facts):
        if self.refuses is not None:
            raise ValueError(self.refuses)
        self.facts.append(facts)

    def observe(self, event):
        self.events.append(event)
        if isinstance(event, ev.WorkerJoined):
            assert event.worker_id not in self.joined, "it has joined already"
            self.joined[event.worker_id] = event
        elif isinstance(event, ev.WorkerDraining):
            self.draining.add(event.worker_id)
        elif isinstance(event, ev.WorkerUndrained):
            self.draining.remove(event.worker_id)
        elif isinstance(event, ev.WorkerLost):
            del self.joined[event.worker_id]
            self.draining.discard(event.worker_id)

    async def worker(self, name):
        self.while_asked()
        joined = self.joined.get(name)
        if joined is None:
            return None
        held, calls = self.held.get(name, 0), self.calls.get(name, 0)
        return WorkerView(name, name in self.draining, joined.kv_capacity_tokens, held, 0, calls)

    async def until(self, condition):
        """Wait for the event, or the health check, that makes the condition true."""
        await until(condition)

    async def health_checks(self, server, count=3):
        """Wait for ``count`` more health checks of a server."""
        asked = len(server.paths) + count
        await self.until(lambda: len(server.paths) >= asked)

    def add(self, server, worker_id="w", **spec):
        kind = spec.pop("kind", server.kind)
        self.pool.add(WorkerSpec(worker_id, spec.pop("url", server.url), kind, **spec))

    def view(self, worker_id="w"):
        (view,) = (view for view in self.pool.views() if view["worker_id"] == worker_id)
        return view

    def state(self, worker_id="w"):
        return self.view(worker_id)["state"]

    async def call(self, word="ok", worker_id="w", **body):
        stream = send(self.pool[worker_id], request(word, **body))
        try:
            return [chunk.data async for chunk in stream]
        finally:
            stream.close()
