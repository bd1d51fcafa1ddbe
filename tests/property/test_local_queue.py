"""The queue before a foreign server loses no call, sends none twice, and keeps its concurrency."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

DOCUMENTS = [np.arange(first, first + 64, dtype=np.uint32) for first in (0, 1000, 2000)]


def call(name, client, rng):
    tokens = np.concatenate([rng.choice(DOCUMENTS), rng.choice(DOCUMENTS)[: rng.randint(0, 64)]])
    return LocalCall(name, client, len(tokens), 20, tokens, weight=rng.choice([0.5, 1.0, 2.0]))


@pytest.mark.parametrize("scheduler", LOCAL_SCHEDULERS)
@given(seed=st.integers(0, 2**32), concurrency=st.integers(1, 4))
def test_calls_are_conserved_under_any_order_of_events(scheduler, seed, concurrency):
    rng = random.Random(seed)
    queue = LocalQueue(LOCAL_SCHEDULERS[scheduler](), concurrency, rng.choice([0, 160, 4096]))
    waiting, sent, order = set(), set(), []
    now_s, resume_s = 0.0, 0.0
    tenants, pauses = {}, {}

    def may_go():
        return {name for name in waiting if pauses.get(tenants[name], now_s) <= now_s}

    def send():
        turns = queue.send(now_s)
        assert len(turns) == len(set(turns))
        assert set(turns) <= may_go(), "each once, and only those that wait and are not paused"
        assert not turns or now_s >= resume_s, "nothing during a pause"
        waiting.difference_update(turns)
        sent.update(turns)
        order.extend(turns)
        assert len(sent) <= concurrency
        if now_s >= resume_s:
            assert not may_go() or len(sent) == concurrency, "no room is left while one waits"

    for number in range(rng.randint(1, 60)):
        move = rng.random()
        if move < 0.45:
            name = f"call {number}"
            tenants[name] = rng.choice("abc")
            queue.add(call(name, tenants[name], rng), tenants[name])
            waiting.add(name)
        elif move < 0.6 and sent:
            queue.decoded(rng.choice(sorted(sent)), rng.randint(0, 30))
        elif move < 0.85 and waiting | sent:
            name = rng.choice(sorted(waiting | sent))
            queue.end(name)
            waiting.discard(name)
            sent.discard(name)
        elif move < 0.9:
            resume_s = max(resume_s, now_s + rng.random())
            queue.pause(now_s, resume_s)
        elif move < 0.95:
            tenant, until_s = rng.choice("abc"), now_s + 5 * rng.random()
            pauses[tenant] = max(until_s, pauses.get(tenant, 0.0))
            if sum(end_s > now_s for end_s in pauses.values()) > 1:
                resume_s = max(resume_s, until_s)
            queue.pause(now_s, until_s, tenant)
        now_s += rng.random() / 2
        if rng.random() < 0.8:
            send()
        assert (queue.waiting, queue.sent) == (len(waiting), len(sent))
    now_s = max(now_s, resume_s, *pauses.values())
    while waiting or sent:
        send()
        for name in sorted(sent):
            queue.end(name)
            sent.discard(name)
    assert (queue.waiting, queue.sent) == (0, 0)
    assert len(order) == len(set(order))
    assert queue.send(now_s) == []


@given(
    seed=st.integers(0, 2**32), concurrency=st.integers(1, 3), quantum=st.sampled_from([50, 300])
)
def test_two_backlogged_clients_are_served_within_the_bound(seed, concurrency, quantum):
    """DLPM's bound for each of the two: the quantum, and what a batch can owe beyond it."""
    rng = random.Random(seed)
    scheduler = Dlpm(DlpmOptions(quantum=quantum, we=1.0, wq=2.0))
    queue = LocalQueue(scheduler, concurrency, 4096)
    service, owner, prompts = {"flood": 0.0, "light": 0.0}, {}, {}
    longest, output = 128, 10
    for client, count in (("flood", 120), ("light", 40)):
        for number in range(count):
            name = f"{client} {number}"
            first = rng.randrange(1 << 30)  # nothing is cached: the extend tokens are the prompt
            tokens = np.arange(first, first + rng.randint(1, longest), dtype=np.uint32)
            queue.add(LocalCall(name, client, len(tokens), output, tokens))
            owner[name], prompts[name] = client, len(tokens)
    left = {"flood": 120, "light": 40}
    running = set()
    bound = 2 * (quantum + concurrency * (longest + 2 * output))
    while all(left.values()):
        for name in queue.send(0.0):
            running.add(name)
            left[owner[name]] -= 1
            service[owner[name]] += prompts[name]
        for name in rng.sample(sorted(running), 1):
            queue.decoded(name, output)
            service[owner[name]] += 2 * output
            queue.end(name)
            running.remove(name)
        assert abs(service["flood"] - service["light"]) <= bound
    for name in [*running]:
        queue.end(name)
    for client in service:
        assert scheduler.deficit(client) <= quantum, "nobody keeps more than a quantum"
