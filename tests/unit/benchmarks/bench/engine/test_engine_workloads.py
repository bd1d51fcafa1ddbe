"""Workloads have the sizes in their names, follow from the seed, and fit into the engines."""

import pytest

from fairserve.benchmarks.bench.engine.workloads import NAMES, guard, limits, workloads


@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_workload_fits_into_the_engines(on_gpu):
    size = limits(on_gpu)
    assert tuple(workloads(on_gpu)) == tuple(NAMES)
    for workload in workloads(on_gpu).values():
        held = sum(prompt + workload.shared_tokens + output for prompt, output in workload.sizes())
        # Half as much again: other engines hold tokens in larger blocks, and keep some of them free.
        assert held * 1.3 <= size.kv_tokens
        assert workload.requests <= size.max_batch


def test_batches_have_the_sizes_in_their_names():
    found = workloads(False)
    assert [found[name].requests for name in ("b1", "b8", "b32", "b128")] == [1, 8, 32, 128]
    shared = found["shared"]
    assert (shared.requests, shared.shared_tokens) == (32, 512)
    assert set(shared.sizes()) == {(32, 16)}


def test_mixed_lengths_are_spread_and_equal_in_every_round():
    mixed = workloads(False)["mixed"]
    prompts, outputs = zip(*mixed.sizes(), strict=True)
    assert (min(prompts), max(prompts)) == mixed.prompt_tokens
    assert (min(outputs), max(outputs)) == mixed.output_tokens
    assert list(outputs) != sorted(outputs)
    rounds = [
        sorted((len(request.prompt), request.output_tokens) for request in mixed.make(500, seed))
        for seed in (1, 2)
    ]
    assert rounds[0] == rounds[1] == sorted(mixed.sizes())


def test_tokens_follow_from_the_seed_with_the_stated_sharing():
    shared = workloads(False)["shared"]
    one, same, other = (shared.make(1000, seed) for seed in (1, 1, 2))
    assert one == same
    assert {request.prompt[:512] for request in one}.isdisjoint(
        request.prompt[:512] for request in other
    )
    assert len({request.prompt[:512] for request in one}) == 1
    assert len({request.prompt[512:] for request in one}) == 32
    assert all(0 <= token < 1000 for request in one for token in request.prompt)


def test_short_and_small_variants_keep_other_properties():
    mixed = workloads(False)["mixed"]
    short = mixed.shortened(4)
    assert max(output for _, output in short.sizes()) == 4
    assert [prompt for prompt, _ in short.sizes()] == [prompt for prompt, _ in mixed.sizes()]
    assert mixed.scaled(1.0) is mixed
    assert mixed.scaled(0.1).requests == 3
    assert guard().shared_tokens > 32
