"""A small cluster in virtual time for tests of the core: the real dispatcher and local schedulers.

Each worker decodes one token per running call and step, admits by the pull protocol, reserves its
outputs, and caches whole prompts in blocks without eviction (the tests of the engine cover
eviction). Steps take ``step_s``; prefill of a step costs ``prefill_s_per_token``.

With ``evict_share`` a worker drops some cached block and those after it in that share of its steps;
with ``publishes`` it reports stored and dropped blocks to the dispatcher.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from fairserve.interactions.call import Call, TokenUsage, client_id
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

BLOCK = 16


def prompt(*parts):
    """Return token ids from (seed, length) parts: equal parts are equal tokens."""
    arrays = [np.random.default_rng(seed).integers(0, 50_000, length) for seed, length in parts]
    return np.concatenate(arrays).astype(np.uint32)


def make_call(call_id, *, user="u", app="app", run=None, tokens=None, output=8, system=0, **more):
    """Return a call with sensible defaults; ``tokens`` are its prompt token ids."""
    tokens = prompt((hash_of(call_id), 32)) if tokens is None else tokens
    return Call(
        call_id=call_id,
        tenant=more.pop("tenant", "t"),
        app=app,
        user=user,
        interaction_id=run or f"run-{call_id}",
        model="m",
        input_tokens=len(tokens) - system,
        system_tokens=system,
        max_output_tokens=output,
        token_ids=tokens,
        single=run is None,
        **more,
    )


def hash_of(text):
    """Return a seed from a name, equal in every process."""
    return int.from_bytes(text.encode()[-6:].rjust(6, b"0"), "big")


@dataclass
class VirtualWorker:
    worker_id: str
    kv_tokens: int
    local: object
    slots: int = 1_000
    waiting: dict[str, Call] = field(default_factory=dict)
    running: dict[str, list] = field(default_factory=dict)  # id -> [call, cached, decoded, held]
    blocks: set = field(default_factory=set)
    held: int = 0
    free_s: float = 0.0
    busy_s: float = 0.0
    listener: object = None
    stored: list = field(default_factory=list)  # names of the blocks of prompts
    published: list = field(default_factory=list)  # ("+", tokens, salt) or ("-", names)

    def _names(self, tokens):
        ids, names = tokens.tolist(), [()]
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            names.append(hash((names[-1], *ids[end - BLOCK : end])))
        return names

    def matched_tokens(self, call):
        return self.match(call)[0]

    def match(self, call):
        names = self._names(call.token_ids)
        blocks = next((n for n, name in enumerate(names[1:]) if name not in self.blocks), None)
        if blocks is None:
            return min(BLOCK * (len(names) - 1), call.prompt_tokens - 1), names[-1], None
        return BLOCK * blocks, names[blocks], names[blocks + 1]

    def follow(self, listener):
        self.listener = listener

    def _store(self, tokens):
        names = self._names(tokens)[1:]
        new = [name for name in names if name not in self.blocks]
        self.blocks.update(new)
        if new:
            self.stored.append(names)
            self.published.append(("+", names, tokens))
        if self.listener is not None:
            for name in new[:1]:
                self.listener.changed(name)

    def evict(self, rng):
        """Drop a block of some prompt, and all blocks that follow it; none of a running call."""
        used = {name for call, *_ in self.running.values() for name in self._names(call.token_ids)}
        idle = [name for names in self.stored for name in names if name not in used]
        if not idle:
            return
        first = rng.choice(idle)
        ends = [(each, each.index(first)) for each in self.stored if first in each]
        gone = {name for each, cut in ends for name in each[cut:]}
        self.blocks -= gone
        self.stored = [kept for each in self.stored if (kept := [n for n in each if n not in gone])]
        self.published.append(("-", list(gone), None))
        if self.listener is not None:
            for name in gone:
                self.listener.changed(name)

    def submit(self, call, weight):
        self.waiting[call.call_id] = call
        self.local.add(
            LocalCall(
                call_id=call.call_id,
                client_id=client_id(call.client),
                prompt_tokens=call.prompt_tokens,
                max_output_tokens=call.max_output_tokens,
                token_ids=call.token_ids,
                weight=weight,
                output_tokens=call.max_output_tokens,
            )
        )

    def step(self):
        """Admit, prefill, and decode one token each; return (started, decoded, ended, extend)."""
        started, extend = [], 0
        self.local.start_pass(self)
        while (offered := self.local.peek()) is not None:
            cached = self.matched_tokens(offered)
            need = offered.prompt_tokens - cached + offered.max_output_tokens
            if self.held + need > self.kv_tokens or len(self.running) >= self.slots:
                self.local.skip()
                continue
            self.local.accept(cached)
            call = self.waiting.pop(offered.call_id)
            self.running[call.call_id] = [call, cached, 0, need]
            self.held += need
            extend += offered.prompt_tokens - cached
            started.append((call, cached))
        for call, _ in started:
            self._store(call.token_ids)
        decoded, ended = [], []
        for call_id, state in list(self.running.items()):
            state[2] += 1
            self.local.decoded(call_id, 1)
            decoded.append((call_id, state[2]))
            if state[2] >= state[0].max_output_tokens:
                self.end(call_id)
                ended.append(state)
        return started, decoded, ended, extend

    def end(self, call_id):
        state = self.running.pop(call_id, None)
        if state is not None:
            self.held -= state[3]
        else:
            del self.waiting[call_id]
        self.local.finish(call_id)


class VirtualCluster:
    """Drives a dispatcher: arrivals by :meth:`at`, then :meth:`run` until a time."""

    def __init__(
        self,
        system,
        *,
        workers=2,
        kv_tokens=4000,
        step_s=0.02,
        prefill_s_per_token=0.0002,
        publishes=False,
        evict_share=0.0,
        slots=None,
    ):
        """With ``slots``, workers run this many calls at a time, and report it."""
        self.dispatcher = Dispatcher(system, seed=7)
        self.step_s, self.prefill_s_per_token = step_s, prefill_s_per_token
        self.system = system
        self.publishes, self.evict_share, self.rng = publishes, evict_share, random.Random(3)
        self.now_s = 0.0
        self.slots = slots
        self.workers = {}
        self.arrivals = []
        self.calls = {}
        self.arrived_s, self.admitted, self.started_s, self.ended = {}, {}, {}, {}
        self.refused, self.interactions, self.commands = {}, {}, []
        self.on_end = lambda call, outcome: None
        self.keys = {}
        for number in range(workers):
            self.join(f"w{number}", kv_tokens)

    def join(self, worker_id, kv_tokens, model="", kind=""):
        local = LOCAL_SCHEDULERS[self.system.local](**self.system.local_options)
        self.workers[worker_id] = worker = VirtualWorker(worker_id, kv_tokens, local)
        worker.free_s = self.now_s
        if self.slots is not None:
            worker.slots = self.slots
        self.event(ev.WorkerJoined(worker_id, kv_tokens, model, kind=kind, slots=self.slots))
        if self.publishes:
            self.event(ev.WorkerCacheReset(worker_id, complete=True))

    def lose(self, worker_id):
        """Lose a worker: calls not started are queued again, started ones fail."""
        worker = self.workers.pop(worker_id)
        self.event(ev.WorkerLost(worker_id))
        for call_id in list(worker.waiting):
            self.event(ev.CallReturned(call_id))
        for call, cached, decoded, _ in list(worker.running.values()):
            self._end(call, cached, decoded, "failed")

    def at(self, time_s, call):
        self.arrivals.append((time_s, len(self.arrivals), call))

    def event(self, event):
        commands = self.dispatcher.handle(event, self.now_s)
        self.commands += commands
        for command in commands:
            if isinstance(command, ev.Admit):
                assert command.call_id not in self.ended, "admitted after its end"
                self.admitted.setdefault(command.call_id, []).append(
                    (self.now_s, command.worker_id)
                )
                self.workers[command.worker_id].submit(self.calls[command.call_id], command.weight)
            elif isinstance(command, ev.Refuse):
                assert command.call_id not in self.refused, "refused twice"
                self.refused[command.call_id] = command
                self.on_end(self.calls[command.call_id], "refused")
            elif isinstance(command, ev.CancelCall):
                self._cancel(command)
            elif isinstance(command, ev.InteractionEnded):
                assert command.interaction_id not in self.interactions, "ended twice"
                self.interactions[command.interaction_id] = command

    def arrive(self, call):
        self.calls[call.call_id] = call
        self.arrived_s[call.call_id] = self.now_s
        self.event(ev.CallArrived(call))

    def _cancel(self, command):
        call = self.calls[command.call_id]
        if command.worker_id is None:
            assert command.call_id not in self.ended
            self.ended[command.call_id] = (command.outcome, None)
            self.on_end(call, command.outcome)
            return
        worker = self.workers[command.worker_id]
        state = worker.running.get(command.call_id)
        cached, decoded = (state[1], state[2]) if state else (0, 0)
        worker.end(command.call_id)
        self._end(call, cached, decoded, command.outcome, never_ran=state is None)

    def _end(self, call, cached, decoded, outcome, never_ran=False):
        assert call.call_id not in self.ended, "ended twice"
        usage = TokenUsage(
            0 if never_ran else call.input_tokens,
            0 if never_ran else call.system_tokens,
            cached,
            decoded,
        )
        self.ended[call.call_id] = (outcome, usage)
        self.event(ev.CallEnded(call.call_id, outcome, usage))
        self.on_end(call, outcome)

    def run(self, until_s):
        """Advance virtual time: arrivals, worker steps and ticks, in order."""
        self.arrivals.sort(key=lambda a: a[:2])
        next_tick_s = self.now_s
        while True:
            times = [next_tick_s]
            if self.arrivals:
                times.append(self.arrivals[0][0])
            times += [w.free_s for w in self.workers.values() if w.waiting or w.running]
            soonest_s = max(self.now_s, min(times))
            if soonest_s > until_s:
                self.now_s = until_s
                return
            self.now_s = soonest_s
            if soonest_s >= next_tick_s:
                self.event(ev.Tick())
                next_tick_s = soonest_s + 0.25
            while self.arrivals and self.arrivals[0][0] <= self.now_s:
                self.arrive(self.arrivals.pop(0)[2])
            for worker in list(self.workers.values()):
                if worker.free_s <= self.now_s and (worker.waiting or worker.running):
                    self._step(worker)

    def _step(self, worker):
        started, decoded, ended, extend = worker.step()
        took_s = self.step_s + extend * self.prefill_s_per_token
        worker.free_s = self.now_s + took_s
        worker.busy_s += took_s
        for call, cached in started:
            self.started_s[call.call_id] = self.now_s
            self.event(ev.CallStarted(call.call_id, cached))
        if decoded := [each for each in decoded if self.calls[each[0]].streamed]:
            self.event(ev.TokensDecoded(tuple(decoded)))
        for call, cached, tokens, _ in ended:
            self._end(call, cached, tokens, "completed")
        if worker.stored and self.rng.random() < self.evict_share:
            worker.evict(self.rng)
        for report in self._reports(worker) if self.publishes else ():
            self.event(report)

    def _reports(self, worker):
        """Yield the worker's events since the last time, in the dispatcher's keys."""
        names = self.keys.setdefault(worker.worker_id, {})
        hasher = self.dispatcher.first.locality._hasher
        for kind, blocks, tokens in worker.published:
            if kind == "+":
                keys = hasher.keys(tokens).tolist()
                names.update(zip(blocks, keys, strict=True))
                yield ev.WorkerCached(worker.worker_id, None, tuple(keys))
            else:
                keys = tuple(names.pop(block) for block in blocks if block in names)
                yield ev.WorkerEvicted(worker.worker_id, keys)
        worker.published.clear()
