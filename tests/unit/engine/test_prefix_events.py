"""Cache events keep the scheduler's matches equal to matching every waiting call again."""

import random

import numpy as np
import pytest
from hypothesis import settings

from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions


def test_the_matches_of_the_scheduler_are_current(make_bench, seed):
    """No match is outdated with alternating clients, evictions and cancellations."""
    rng, steps = random.Random(seed), 4 * settings.default.max_examples
    scheduler = Dlpm(DlpmOptions(quantum=1))
    bench = make_bench(
        scheduler=scheduler, kv_tokens=20 * PAGE_TOKENS, max_batch=3, token_budget=40
    )
    engine, evicted, longer, shorter = bench.engine, [], 0, 0
    engine.cache.trie.on_evict = evicted.append
    trunks = np.random.default_rng(seed).integers(3, 200, (3, 8 * PAGE_TOKENS)).tolist()
    known = {}
    for number in range(steps):
        if rng.random() < 0.6:
            client = rng.randrange(3)
            tokens = trunks[client][: rng.randrange(8 * PAGE_TOKENS)]
            tokens = tokens + [rng.randrange(3, 200) for _ in range(rng.randint(1, 40))]
            salt = rng.choice(["", "", "x"])
            bench.add(f"s{number}", tokens, rng.randint(1, 20), client=f"c{client}", salt=salt)
        if engine.batcher.waiting and rng.random() < 0.1:
            engine.cancel(rng.choice(list(engine.batcher.waiting)))
        scheduler.start_pass(engine.batcher)
        waiting = {i: call for i, call in scheduler._calls.items() if not call.running}
        assert set(waiting) == set(engine.batcher.waiting)
        for call_id, call in waiting.items():
            sequence = engine.batcher.waiting[call_id]
            exact = engine.cache.trie.match(sequence.salt, sequence.reusable_keys())
            matched_tokens = exact.depth * PAGE_TOKENS
            assert call.group.tokens == matched_tokens
            before = known.get(call_id, matched_tokens)
            longer += matched_tokens > before
            shorter += matched_tokens < before
            known[call_id] = matched_tokens
        engine.step()
    bench.run()
    assert evicted
    assert longer
    assert shorter
    groups = scheduler._places._groups
    left = (groups._at, groups._awaiting, groups._new)
    assert not any(left), "what is admitted or cancelled is not watched"


@pytest.mark.parametrize("levels", ["c", "t/c"])
def test_dlpm_serves_all_clients(make_bench, levels):
    bench = make_bench(scheduler=Dlpm(DlpmOptions(quantum=50)), kv_tokens=20 * PAGE_TOKENS)
    for number in range(30):
        prompt = [5 + number % 3] * 40 + [number] * (1 + number % 20)
        bench.add(f"s{number}", prompt, 6, client=f"{levels}{number % 4}")
    bench.run()
    assert bench.engine.stats().finished == 30
    assert bench.engine.stats().prefix_hit_tokens > 0
