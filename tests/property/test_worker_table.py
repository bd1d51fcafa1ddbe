"""The mask of open workers and the sums of the table agree with an iteration over all workers."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from fairserve.scheduling.dispatch.background_room import PEAK_S
from fairserve.scheduling.dispatch.worker_table import WorkerTable
from fairserve.scheduling.locality.workers import Workers


@given(st.integers(0, 2**32), st.sampled_from([None, 0.05, 1.0]))
def test_masks_and_sums_agree_with_the_workers(seed, window):
    rng = random.Random(seed)
    numbers = Workers()
    options = {"background_window": 0.4, "background_calls": 3}
    table = WorkerTable(window, numbers, **options)
    most, period_s, now_s = {}, 0.0, 0.0
    """``most``: by worker, what other calls held at most in the last period and in this one."""
    table.tick(now_s)
    for step in range(80):
        workers = list(table.workers.values())
        action = rng.random()
        if action < 0.15 or not workers:
            table.join(f"w{step}", rng.randint(1, 2000), slots=rng.choice((None, 1, 4, 30)))
            most[f"w{step}"] = [(0, 0), (0, 0)]
        elif action < 0.25:
            worker = rng.choice(workers)
            (table.undrain if worker.draining else table.drain)(worker)
        elif action < 0.3:
            worker = rng.choice(workers)
            table.lose(worker)
            numbers.forget(worker.worker_id)
        elif action < 0.5:
            sign = rng.choice((1, 1, -1))
            table.add_demand(
                rng.choice(workers), sign * rng.randint(1, 75), sign * rng.randint(0, 2)
            )
        elif action < 0.55:
            table.report(rng.choice(workers), rng.randint(0, 100), 1.0)
        elif action < 0.65:
            room = rng.choice(workers).background
            room.add(rng.randint(1, 100), rng.randint(1, 3))
            room.start()
        elif action < 0.7:
            now_s += rng.choice((1.0, PEAK_S))
            if now_s - period_s >= PEAK_S:
                period_s = now_s
                most = {name: [now, (0, 0)] for name, (_, now) in most.items()}
            table.tick(now_s)
        else:
            table.add_waiting(rng.choice(workers), rng.randint(-50, 100))
        serving = [w for w in table.workers.values() if not w.draining]
        full = [w for w in serving if window and w.waiting_tokens >= window * w.kv_capacity_tokens]
        assert sorted(table.serving) == sorted(w.worker_id for w in serving)
        assert sorted(table.open) == sorted(w.worker_id for w in serving if w not in full)
        for w in table.workers.values():
            now = (w.demand_tokens + w.foreign_tokens, w.sequences)
            most[w.worker_id][1] = tuple(map(max, most[w.worker_id][1], now))
        size = tokens, sequences = rng.randint(1, 300), rng.randint(1, 3)

        def is_spare(w, tokens=tokens, sequences=sequences, most=most):
            peaks = [max(both) for both in zip(*most[w.worker_id], strict=True)]
            kv, slots = w.kv_capacity_tokens, w.background.slots or 6
            return (
                w.waiting_tokens <= 0
                and w.background.calls < 3
                and w.background.tokens + tokens <= min(0.4 * kv, kv - peaks[0])
                and w.background.sequences + sequences <= min(0.4 * slots, slots - peaks[1])
            )

        assert sorted(table.spare(*size)) == sorted(w.worker_id for w in serving if is_spare(w))
        assert table.load(7) == (
            7 + sum(w.demand_tokens + w.foreign_tokens for w in serving),
            sum(w.kv_capacity_tokens for w in serving),
        )
        copy = WorkerTable(window, numbers, **options)
        copy.restore(json.loads(json.dumps(table.snapshot(5.0))), 5.0)
        assert copy.load(7) == table.load(7)
        assert copy.open.mask == table.open.mask
        assert copy.spare(*size).mask == table.spare(*size).mask
