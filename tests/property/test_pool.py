"""The pool's mask of open workers and its sums, against going through all workers."""

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairserve.scheduling.pool import Pool
from fairserve.scheduling.workers import Workers


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([None, 0.05, 1.0]))
def test_masks_and_sums_are_those_of_the_workers(seed, window):
    rng = random.Random(seed)
    numbers = Workers()
    pool = Pool(window, numbers)
    for step in range(80):
        workers = list(pool.workers.values())
        action = rng.random()
        if action < 0.15 or not workers:
            pool.join(f"w{step}", rng.randint(1, 2000))
        elif action < 0.25:
            worker = rng.choice(workers)
            pool.drain(worker)
            numbers.forget(worker.worker_id)
        elif action < 0.3:
            worker = rng.choice(workers)
            pool.lose(worker)
            numbers.forget(worker.worker_id)
        elif action < 0.6:
            pool.add_demand(rng.choice(workers), rng.randint(-50, 100))
        else:
            pool.add_waiting(rng.choice(workers), rng.randint(-50, 100))
        serving = [w for w in pool.workers.values() if not w.draining]
        full = [w for w in serving if window and w.waiting_tokens >= window * w.kv_capacity_tokens]
        assert sorted(pool.serving()) == sorted(w.worker_id for w in serving)
        assert sorted(pool.open()) == sorted(w.worker_id for w in serving if w not in full)
        assert pool.load(7) == (
            7 + sum(w.demand_tokens for w in serving),
            sum(w.kv_capacity_tokens for w in serving),
        )
        copy = Pool(window, numbers)
        copy.restore(json.loads(json.dumps(pool.snapshot(5.0))), 5.0)
        assert copy.load(7) == pool.load(7)
        assert copy.open().mask == pool.open().mask
