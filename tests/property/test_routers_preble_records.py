"""Test Preble's records: its tree against a list of prompts, its medians, its window, its sums."""

import random
from statistics import median

import pytest
from histories import histories
from hypothesis import given
from hypothesis import strategies as st
from preble_run import Run

from fairserve.benchmarks.policies.request_tree import RequestTree
from fairserve.benchmarks.policies.running_median import RunningMedian


def chained(symbols):
    """Return keys as the hasher makes them: equal key, equal whole prefix. Symbols are 0, 1 and 2."""
    return [int("1" + "".join(map(str, symbols[: end + 1]))) for end in range(len(symbols))]


@given(
    histories(
        st.tuples(st.booleans(), st.lists(st.integers(0, 2), max_size=8), st.integers(0, 99)), 40
    )
)
def test_the_tree_matches_like_a_plain_list_of_prompts(steps):
    tree = RequestTree(lambda upper, lower: None, lambda node: None)
    pinned = []
    for removes, symbols, which in steps:
        if removes and pinned:
            _, leaf = pinned.pop(which % len(pinned))
            tree.unpin(leaf)
        else:
            keys = chained(symbols)
            leaf = tree.insert(keys)
            leaf.pins += 1
            assert leaf.depth == len(keys)
            pinned.append((symbols, leaf))
        for probe in [symbols, [0, 1, 2, 0], *(other for other, _ in pinned)]:
            longest = 0
            for other, _ in pinned:
                common = 0
                while common < min(len(other), len(probe)) and other[common] == probe[common]:
                    common += 1
                longest = max(longest, common)
            assert tree.find(chained(probe))[0] == longest
        blocks = sum(len(node.keys) for node in tree.nodes.values())
        prefixes = {tuple(other[: n + 1]) for other, _ in pinned for n in range(len(other))}
        assert blocks == len(prefixes), "each block once, none left over"
    for _, leaf in pinned:
        tree.unpin(leaf)
    assert list(tree.nodes.values()) == [tree.root]


@given(histories(st.floats(-5, 5), 40), st.integers(1, 7))
def test_the_running_median_equals_the_median(values, size):
    running = RunningMedian(size)
    for number, value in enumerate(values):
        running.add(value)
        assert running.value() == median(values[max(0, number + 1 - size) : number + 1])
    assert running.values() == values[-size:]


def test_the_window_is_three_minutes():
    run = Run()
    run.router.tick(1000.0)
    run.place("a", (1, 320), on="w1")
    run.finish("a")
    run.router.tick(1180.0)
    assert run.choose("b", (1, 320), (2, 16)) == "w1"
    run.router.tick(1180.5)
    assert run.choose("c", (1, 320), (2, 16)) == "w0"
    assert run.costs() == [0, 0, 0]
    assert len(run.router._tree.nodes) == 1, "forgotten, not only not counted"


def test_a_call_older_than_the_window_attracts_no_calls():
    run = Run()
    run.router.tick(1000.0)
    run.place("a", (1, 320), on="w1")
    run.router.tick(1181.0)
    assert run.choose("b", (1, 320), (2, 16)) == "w0"
    run.finish("a", 5)
    assert len(run.router._tree.nodes) == 1


def test_without_time_the_window_is_a_count():
    run = Run(window_calls=3)
    run.place("a", (1, 320), on="w1")
    run.finish("a")
    for number in range(2):
        run.place(f"other{number}", (50 + number, 16))
    assert run.choose("b", (1, 320), (2, 16)) == "w1"
    run.place("other2", (52, 16))
    assert run.choose("c", (1, 320), (2, 16)) == "w0"


def test_the_loads_are_the_sums_over_the_nodes(seed):
    """After any history, maintained and recomputed sums agree; at the end nothing is left."""
    rng = random.Random(seed)
    run = Run(window_calls=60, eviction=True, rebalance_ratio=1.2, rebalance_after=3)
    for number in range(400):
        run.router.tick(float(number))
        parts = [(rng.randrange(3), 16 * rng.randrange(12)), (rng.randrange(9), rng.randrange(150))]
        run.place(f"c{number}", *parts)
        while len(run.at) > 12 or (run.at and rng.random() < 0.4):
            run.finish(rng.choice(list(run.at)), rng.randrange(50))
        if number == 200:
            run.router.remove_worker("w1")
            run.locality.remove_worker("w1")
        if number == 230:
            run.router.add_worker("w1")
            run.locality.add_worker("w1", 100_000)
        for worker in run.router._held:
            expected = 0.0
            for s in run.router._important.values():
                if worker in s.node.allocated:
                    prefill_s = 0.001 * 16 * len(s.node.keys)
                    output = median(s.outputs.values()) if len(s.outputs) else 40.0
                    expected += s.miss_rate * s.calls * prefill_s / len(s.node.allocated)
                    expected += s.node.references.get(worker, 0) * output * 0.1
            assert run.router.cost_ns(worker) / 1e9 == pytest.approx(expected, abs=1e-5)
        live = sum(s.calls for s in run.router._important.values())
        assert live == len(run.router._window) <= 60
    for name in list(run.at):
        run.router.finished(run.calls[name], None, 1.0, 5)
    run.router.tick(10_000.0)
    assert run.costs() == [0, 0, 0]
    assert len(run.router._tree.nodes) == 1
    assert not run.router._important
    assert not any(run.router._held.values())
