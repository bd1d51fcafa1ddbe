"""The simulated loop ``paged`` does what vLLM's scheduler does, event by event.

Sessions with growing prompts run in both, in a cache that they overflow; a pass takes one second.
Every entry with its cached tokens, every preemption and every end happens in the same pass.
"""

import heapq
import itertools
import math
import random
from array import array

import pytest
import vllm_world  # imported first: without vLLM it skips this file
from pass_costs import pass_costs
from vllm.v1.core.sched.scheduler import Scheduler

from fairserve.engine.simulated.paged_worker import PagedWorker
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.fcfs import Fcfs


class Vllm:
    """vLLM's scheduler, whose passes are the time."""

    def __init__(self, blocks, running, budget):
        self.world = vllm_world.World(
            Scheduler, blocks=blocks + 1, max_num_seqs=running, max_num_batched_tokens=budget
        )
        self.log, self.next_s = [], math.inf

    def add(self, call_id, prompt, output, now_s):
        self.world.add(call_id, prompt, output)
        if self.next_s == math.inf:
            self.next_s = now_s
            self.begin()

    def begin(self):
        """Schedule a pass that begins now."""
        self.world.schedule()
        scheduled, _ = self.world.in_flight[-1]
        now_s, self.next_s = self.next_s, self.next_s + 1.0
        self.log += [
            ("enter", now_s, new.req_id, new.num_computed_tokens)
            for new in scheduled.scheduled_new_reqs
        ]
        self.log += [("preempt", now_s, call_id) for call_id in scheduled.preempted_req_ids or ()]

    def advance(self):
        """End a pass and begin the next one; yield each ended call with its output."""
        before = set(self.world.ended)
        self.world.update()
        for call_id, request in self.world.requests.items():
            if call_id in self.world.ended and call_id not in before:
                self.log.append(("end", self.next_s, call_id))
                yield call_id, list(request.output_token_ids)
        if self.world.scheduler.has_unfinished_requests():
            self.begin()
        else:
            self.next_s = math.inf


class Simulated(PagedWorker):
    """A simulated worker that records what it does, for prompts whose tokens only continue others."""

    def __init__(self, blocks, running, budget):
        costs = pass_costs(blocks * vllm_world.BLOCK, running=running, budget=budget, loop="paged")
        super().__init__(costs, Fcfs(), vllm_world.BLOCK, self)
        self.log, self.over = [], []

    def add(self, call_id, prompt, output, now_s):
        own = 10_000 * (1 + int(call_id.split("/")[0]))
        begin, end = len(prompt) // vllm_world.BLOCK, (len(prompt) + output) // vllm_world.BLOCK
        super().add(
            LocalCall(call_id, "client", len(prompt), output),
            array("Q", range(own, own + begin)),
            output_keys=array("Q", range(own + begin, own + end)),
            samples=1,
            output_tokens=output,
            now_s=now_s,
        )
        if self.next_s == now_s:
            super().advance(now_s)

    def advance(self):
        self.over = []
        super().advance(self.next_s)
        yield from self.over

    def _preempt(self, sequence):
        self.log.append(("preempt", self._began_s, sequence.call.call_id))
        super()._preempt(sequence)

    def started(self, call_id, cached_tokens, now_s):
        self.log.append(("enter", now_s, call_id, cached_tokens))

    def first_token(self, call_id, now_s):
        pass

    def ended(self, call_id, output_tokens, now_s):
        self.log.append(("end", now_s, call_id))
        self.over.append((call_id, [0] * output_tokens))


def sessions(rng):
    """Return sessions of calls: new prompt tokens, output tokens, pause before the call."""
    return [
        [
            (rng.randint(2, 60 if not turn else 30), rng.randint(1, 60), rng.uniform(0.0, 20.0))
            for turn in range(5)
        ]
        for _ in range(rng.randint(6, 14))
    ]


def events(engine, made):
    """Run the sessions; return the engine's events in the order of time."""
    order, tokens = itertools.count(), itertools.count()

    def new(count):
        return list(itertools.islice(tokens, count))

    due = [(turns[0][2], next(order), f"{at}/0", new(turns[0][0])) for at, turns in enumerate(made)]
    heapq.heapify(due)
    prompts = {}
    while due or prompts:
        if due and due[0][0] < engine.next_s:
            now_s, _, call_id, prompt = heapq.heappop(due)
            session, turn = map(int, call_id.split("/"))
            prompts[call_id] = prompt
            engine.add(call_id, prompt, made[session][turn][1], now_s)
            continue
        now_s = engine.next_s
        for call_id, output in list(engine.advance()):
            session, turn = map(int, call_id.split("/"))
            longer = prompts.pop(call_id) + output
            if turn + 1 < len(made[session]):
                more, _, pause_s = made[session][turn + 1]
                following = f"{session}/{turn + 1}"
                heapq.heappush(due, (now_s + pause_s, next(order), following, longer + new(more)))
    return sorted((round(at_s, 6), kind, *rest) for kind, at_s, *rest in engine.log)


@pytest.mark.parametrize("number", range(12))
def test_the_simulated_worker_does_what_vllm_does(seed, number):
    rng = random.Random(seed)
    made = sessions(rng)
    sizes = rng.randint(120, 170), rng.randint(3, 8), rng.choice([16, 32, 64])
    expected = events(Vllm(*sizes), made)
    assert events(Simulated(*sizes), made) == expected
    assert sum(kind == "end" for _, kind, *_ in expected) == sum(map(len, made))


def test_sessions_like_these_hit_and_are_preempted():
    """The comparison is about something: there are hits, misses and preemptions in it."""
    rng, hits, preemptions = random.Random(1), [], 0
    for _ in range(6):
        log = events(Simulated(130, 6, 32), sessions(rng))
        hits += [rest[1] for _, kind, *rest in log if kind == "enter"]
        preemptions += sum(kind == "preempt" for _, kind, *_ in log)
    assert preemptions > 5
    assert 20 < sum(tokens > 0 for tokens in hits) < len(hits) - 20
