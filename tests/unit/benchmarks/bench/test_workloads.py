"""The loads match their descriptions, and follow from the seed alone."""

from itertools import islice

import numpy as np
import pytest
from prefix_trees import blocks_of

from fairserve.benchmarks.bench.calls import TENANTS, BenchCallSource
from fairserve.benchmarks.bench.decisions import Decisions
from fairserve.benchmarks.bench.dlpm_steps import TURNOVER, DlpmSteps
from fairserve.benchmarks.bench.local_cache import LocalCache
from fairserve.benchmarks.bench.prompts import (
    LONGEST_TOKENS,
    MOST_SHARED,
    SHORTEST_TOKENS,
    VOCABULARY,
    PromptTrees,
)
from fairserve.benchmarks.bench.tree_memory import TreeMemory
from fairserve.benchmarks.bench.vtc_passes import VtcPasses
from fairserve.benchmarks.bench.whole_calls import CALLS_PER_RUN, WholeCallsBench


def calls_of(source):
    while True:
        yield source.call()


def common_tokens(one, other):
    """Return the length of the common prefix of two prompts."""
    shorter = min(len(one), len(other))
    different = np.nonzero(one[:shorter] != other[:shorter])[0]
    return int(different[0]) if len(different) else shorter


# --- prompts ------------------------------------------------------------------------------------


def test_prompts_have_the_stated_lengths_and_shares():
    trees = PromptTrees(1)
    assert len(trees) == 25
    prompts = [trees.prompt(number % 25) for number in range(2000)]
    lengths = [len(prompt.token_ids) for prompt in prompts]
    assert min(lengths) >= SHORTEST_TOKENS
    assert max(lengths) <= LONGEST_TOKENS
    assert np.mean(lengths) == pytest.approx(3076, rel=0.02)
    shared = [prompt.shared_tokens for prompt in prompts]
    shares = np.array(shared) / lengths
    assert min(shares) > 0.2
    assert max(shares) <= MOST_SHARED
    assert sum(shared) / sum(lengths) == pytest.approx(2 / 3, abs=0.03)
    for prompt in prompts[:50]:
        assert prompt.token_ids.dtype == np.uint32
        assert prompt.token_ids.max() < VOCABULARY
        assert 0 < prompt.system_tokens <= prompt.shared_tokens


def test_trees_share_nothing_and_prompts_diverge_at_level_ends():
    trees = PromptTrees(2, trees=4)
    by_tree = [[trees.prompt(tree) for _ in range(60)] for tree in range(4)]
    for prompts in by_tree:
        assert len({prompt.system_tokens for prompt in prompts}) == 1
        ends = {prompt.shared_tokens for prompt in prompts}
        assert 4 < len(ends) <= 1 + 3 + 9
        for prompt in prompts[1:]:
            common = common_tokens(prompts[0].token_ids, prompt.token_ids)
            assert common >= prompt.system_tokens
            # Tokens beyond the shared prefix are drawn independently: equal ones are chance.
            assert common <= min(prompts[0].shared_tokens, prompt.shared_tokens) + 2
        system = prompts[0].system_tokens
        starts = {
            prompt.token_ids[system : system + 3].tobytes()
            for prompt in prompts
            if prompt.shared_tokens > system
        }
        assert len(starts) == 3
    assert common_tokens(by_tree[0][0].token_ids, by_tree[1][0].token_ids) <= 2


# --- calls --------------------------------------------------------------------------------------


def test_calls_come_from_all_clients_and_every_other_tenant_is_salted():
    calls = list(islice(calls_of(BenchCallSource(4, clients=100)), 1500))
    assert len({call.client for call in calls}) == 100
    assert len({call.tenant for call in calls}) == TENANTS
    assert len({call.call_id for call in calls}) == len(calls)
    salts = {call.tenant: call.salt for call in calls}
    assert sum(1 for salt in salts.values() if not salt) == TENANTS // 2
    assert all(salt in ("", tenant) for tenant, salt in salts.items())
    for call in calls:
        assert call.prompt_tokens == len(call.token_ids)
        assert call.salt == salts[call.tenant]


def test_calls_of_a_run_have_one_client():
    source = BenchCallSource(7, clients=1000)
    calls = [source.call_of_run(3, client, final=client % 2 == 0) for client in (0, 1, 10, 999)]
    clients = [call.client for call in calls]
    assert clients == [
        ("tenant-0", "user-0"),
        ("tenant-1", "user-0"),
        ("tenant-0", "user-1"),
        ("tenant-9", "user-99"),
    ]
    assert {call.interaction_id for call in calls} == {"run-3"}
    assert [call.final for call in calls] == [True, False, True, False]


# --- measured states ------------------------------------------------------------------------------


def test_the_router_is_measured_with_full_caches():
    router = Decisions("mean", 3, p99_name="p99", worker_tokens=16_000, outstanding=4, decisions=50)
    tree = router.locality.tree
    capacity_blocks = 3 * 16_000 // 16
    assert all(blocks_of(tree, worker) == 1000 for worker in router.worker_tokens)
    before = len(tree)
    reading = router.round()
    assert 0 < len(tree) <= capacity_blocks
    assert len(tree) >= before // 2
    assert set(reading.figures) == {"mean", "p99"}
    assert reading.figures["mean"] > 0
    assert reading.figures["p99"] >= reading.details["p50_us"]
    assert {"hash_us", "select_us", "charge_us", "insert_us"} <= set(reading.details)


def test_the_tree_is_measured_with_all_its_tokens():
    reading = TreeMemory(2, worker_tokens=20_000).round()
    details = reading.details
    assert 0 < details["distinct_tokens"] <= details["held_tokens"] <= 40_000
    weight = details["tree_bytes"] / details["distinct_tokens"]
    assert reading.figures == {"tree_bytes_per_token": weight}
    assert 0.5 < weight < 100  # a key of at least 8 bytes for 16 tokens


def test_the_local_cache_is_full_and_has_hits():
    cache = LocalCache(worker_tokens=100_000, running=4, calls=40)
    reading = cache.round()
    assert 0.2 < reading.details["hit_rate"] < 0.7
    held = blocks_of(cache.locality.tree, "worker")
    assert 100_000 // 16 * 0.9 < held <= 100_000 // 16


def test_dlpm_steps_keep_queue_and_batch_sizes():
    steps = DlpmSteps("step", waiting=40, batch=16, worker_tokens=50_000, steps=5)
    reading = steps.round()
    assert len(steps) == 40
    assert reading.details["waiting"] == 40
    assert reading.details["running"] == 16 - TURNOVER
    assert steps.admitted_tokens / (5 * TURNOVER) == pytest.approx(3076, rel=0.2)
    assert 0 < reading.details["hit_rate"] < 0.9


def test_vtc_passes_keep_queue_and_batch_sizes():
    passes = VtcPasses("pass", clients=7, queued=50, batch=12, admitted=3, passes=9)
    assert len(passes) == 50
    reading = passes.round()
    assert len(passes) == 50
    assert set(reading.figures) == {"pass"}


def test_calls_run_to_their_end_in_the_dispatcher():
    calls = WholeCallsBench(
        in_flight=24, clients=20, workers=2, worker_tokens=40_000, batch=6, calls=30
    )
    reading = calls.round()
    assert reading.details["in_flight"] == 24
    assert 0 < reading.details["running"] <= 12
    assert reading.details["queued"] > 0
    assert len(calls.dispatcher.tracker) <= 24
    assert calls.ended >= 24 + 30
    assert CALLS_PER_RUN == 4
    parts = sum(reading.details[f"{part}_us"] for part in ("arrival", "start", "decoded", "end"))
    assert parts + reading.details["tick_us"] == pytest.approx(
        1e6 / reading.figures["dispatcher_calls_per_s"]
    )
