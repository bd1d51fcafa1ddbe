"""Test the rules for users, tenants and arrivals, and cuts and merges of traces."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.benchmarks.traces.assignment import (
    arrive_at_once,
    arrive_evenly,
    arrive_poisson,
    assign_tenants,
    assign_users,
    limit,
    merge,
    scale_time,
    window,
)
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall, TraceError


def call(blocks=(), call_id="0", gap_s=2.0):
    return TraceCall(call_id, "a", (), gap_s, 1000, 0, 5, 1, tuple(blocks))


def trace_of(count, name="t", block_tokens=16, blocks=(), step_s=1.0):
    runs = [
        Interaction(f"i{i}", "default", "app", f"u{i % 7}", i * step_s, (call(blocks),))
        for i in range(count)
    ]
    return Trace(name, block_tokens, tuple(runs))


def ids(trace):
    return [interaction.interaction_id for interaction in trace.interactions]


def arrivals(trace):
    return [interaction.arrival_s for interaction in trace.interactions]


def shares(trace):
    counts = Counter(interaction.user for interaction in trace.interactions)
    return {user: count / len(trace) for user, count in counts.items()}


def test_users_are_drawn_uniformly_without_skew():
    found = shares(assign_users(trace_of(2_000), users=4, seed=1))
    assert found == pytest.approx({f"user-{i}": 0.25 for i in range(1, 5)}, abs=0.03)


def test_users_are_drawn_by_zipf_with_skew():
    found = shares(assign_users(trace_of(2_000), users=3, skew=2.0, seed=1))
    total = 1 + 1 / 4 + 1 / 9
    expected = {"user-1": 1 / total, "user-2": 1 / 4 / total, "user-3": 1 / 9 / total}
    assert found == pytest.approx(expected, abs=0.03)


def test_abusive_users_get_their_share_and_a_group():
    trace = assign_users(trace_of(2_000), users=5, skew=1.0, abusive=2, abusive_share=0.8, seed=1)
    groups = {(run.user, run.group) for run in trace.interactions}
    assert groups == {
        ("user-1", "abusive"),
        ("user-2", "abusive"),
        *((f"user-{i}", "well-behaved") for i in (3, 4, 5)),
    }
    found = shares(trace)
    assert found["user-1"] == pytest.approx(0.4, abs=0.03)
    assert found["user-2"] == pytest.approx(0.4, abs=0.03)
    assert found["user-3"] == pytest.approx(0.2 * 6 / 11, abs=0.02)  # 1 : 1/2 : 1/3
    assert found["user-5"] == pytest.approx(0.2 * 2 / 11, abs=0.02)


def test_groups_are_kept_without_abusive_users():
    trace = assign_users(trace_of(10), users=2, abusive=1, abusive_share=0.5)
    kept = assign_users(trace, users=3, seed=5)
    assert [i.group for i in kept.interactions] == [i.group for i in trace.interactions]


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (assign_users, {"users": 9, "skew": 1.0}),
        (assign_tenants, {"tenants": 9}),
        (arrive_poisson, {"rate_per_s": 3.0}),
    ],
)
def test_rules_are_determined_by_their_seed_and_copy_the_trace(rule, options):
    trace, again = trace_of(50), trace_of(50)
    first = rule(trace, seed=3, **options)
    assert first == rule(again, seed=3, **options)
    assert first != rule(trace, seed=4, **options)
    assert trace == again
    assert sorted(ids(first)) == sorted(ids(trace))


def test_a_user_stays_within_one_tenant():
    trace = assign_tenants(trace_of(700), tenants=3, seed=2)
    pairs = {(run.user, run.tenant) for run in trace.interactions}
    assert len(pairs) == 7
    assert {tenant for _, tenant in pairs} <= {"tenant-1", "tenant-2", "tenant-3"}
    assert len({tenant for _, tenant in pairs}) > 1


def test_tenants_are_drawn_by_skew():
    runs = trace_of(2_000)
    alone = runs.with_interactions(
        [replace(run, user=f"user-{number}") for number, run in enumerate(runs.interactions)]
    )
    trace = assign_tenants(alone, tenants=2, skew=1.0, seed=2)
    counts = Counter(run.tenant for run in trace.interactions)
    assert counts["tenant-1"] / 2_000 == pytest.approx(2 / 3, abs=0.03)


def test_poisson_arrivals_have_their_rate():
    trace = arrive_poisson(trace_of(2_000), rate_per_s=4.0, seed=1)
    gaps = np.diff(arrivals(trace))
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)
    assert ids(trace) == ids(trace_of(2_000))


def test_arrivals_are_even_or_simultaneous():
    assert arrivals(arrive_evenly(trace_of(4), rate_per_s=2.0)) == [0.0, 0.5, 1.0, 1.5]
    assert arrivals(arrive_at_once(trace_of(4))) == [0.0] * 4
    assert ids(arrive_at_once(trace_of(4))) == ids(trace_of(4))


def test_time_is_scaled_without_gaps():
    trace = scale_time(trace_of(3), 0.5)
    assert arrivals(trace) == [0.0, 0.5, 1.0]
    assert trace.interactions[0].calls[0].gap_s == 2.0


def test_traces_are_cut():
    assert ids(limit(trace_of(5), 2)) == ["i0", "i1"]
    assert ids(limit(trace_of(5), 9)) == ids(trace_of(5))
    cut = window(trace_of(5), 1.0, 3.0)
    assert (ids(cut), arrivals(cut)) == (["i1", "i2"], [0.0, 1.0])
    assert arrivals(window(trace_of(5), 3.0)) == [0.0, 1.0]
    assert len(window(trace_of(5), 100.0)) == 0


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (assign_users, {"users": 0}, "users 0: 1 or more is allowed"),
        (assign_users, {"users": 2, "skew": -1.0}, "skew -1.0: a finite number"),
        (assign_users, {"users": 2, "abusive": 2}, "abusive 2: 0 to 1, fewer than users"),
        (assign_users, {"users": 2, "abusive": 1}, "abusive_share 0.0: between 0 and 1"),
        (
            assign_users,
            {"users": 2, "abusive": 1, "abusive_share": 1.0},
            "abusive_share 1.0: between",
        ),
        (assign_users, {"users": 2, "abusive_share": 0.5}, "abusive_share 0.5: 0 without abusive"),
        (assign_tenants, {"tenants": 0}, "tenants 0: 1 or more is allowed"),
        (assign_tenants, {"tenants": 2, "skew": float("nan")}, "skew nan: a finite number"),
        (arrive_poisson, {"rate_per_s": 0.0}, "rate_per_s 0.0: above 0"),
        (arrive_evenly, {"rate_per_s": float("inf")}, "rate_per_s inf: above 0"),
        (scale_time, {"factor": 0.0}, "factor 0.0: above 0"),
        (limit, {"interactions": 0}, "interactions 0: 1 or more"),
        (window, {"from_s": 3.0, "to_s": 3.0}, "from_s 3.0: from 0 to below to_s, 3"),
        (window, {"from_s": -1.0}, "from_s -1.0: from 0 to below"),
    ],
)
def test_invalid_options_are_rejected(rule, options, message):
    with pytest.raises(TraceError, match=message):
        rule(trace_of(3), **options)


def test_a_merge_sorts_by_arrival_and_separates_ids():
    first, second = trace_of(2, "a", step_s=2.0), trace_of(2, "b")
    mix = merge([first, second])
    assert mix.name == "a+b"
    assert ids(mix) == ["a/i0", "b/i0", "b/i1", "a/i1"]
    assert ids(merge([first, first], name="x")) == ["a-1/i0", "a-2/i0", "a-1/i1", "a-2/i1"]
    assert merge([first, first], name="x").name == "x"
    with pytest.raises(TraceError, match="traces 0: 1 or more is allowed"):
        merge([])


def test_a_merge_splits_blocks_to_the_greatest_common_divisor():
    coarse = trace_of(1, "c", 24, [(2, 2), (5, 1)])
    fine = trace_of(1, "f", 16, [(0, 3)])
    mix = merge([coarse, fine])
    assert mix.block_tokens == 8
    assert mix.interactions[0].calls[0].blocks == ((6, 6), (15, 3))
    assert mix.interactions[1].calls[0].blocks == ((18, 6),)  # after the first trace's 6 * 3 ids


def test_traces_without_blocks_do_not_determine_the_block_size():
    assert merge([trace_of(1, "c", 512, [(0, 1)]), trace_of(1, "f", 16)]).block_tokens == 512
    assert merge([trace_of(1, "c", 64), trace_of(1, "f", 16)]).block_tokens == 16


@st.composite
def chains(draw, name):
    """Return a trace whose calls walk down one random tree of ids, as prefixes do."""
    block_tokens = draw(st.sampled_from([16, 24, 64]))
    parent = draw(st.lists(st.integers(0, 9), min_size=1, max_size=10))
    runs = []
    for number, leaf in enumerate(draw(st.lists(st.integers(0, len(parent) - 1), max_size=4))):
        path = [leaf]
        while (above := parent[path[0]]) < path[0]:
            path.insert(0, above)
        blocks = [(block_id, 1) for block_id in path]
        runs.append(Interaction(str(number), "t", "a", "u", 0.0, (call(blocks),)))
    return Trace(name, block_tokens, tuple(runs))


def prefixes(trace):
    """Return the shared prefix tokens of each pair of calls of a trace."""
    paths = [list(run.calls[0].block_ids) for run in trace.interactions]
    return {
        (a.interaction_id, b.interaction_id): len(set(x) & set(y)) * trace.block_tokens
        for a, x in zip(trace.interactions, paths, strict=True)
        for b, y in zip(trace.interactions, paths, strict=True)
    }


@given(first=chains("a"), second=chains("b"))
def test_a_merge_keeps_sharing_within_each_trace_only(first, second):
    expected = {
        (f"{trace.name}/{a}", f"{trace.name}/{b}"): shared
        for trace in (first, second)
        for (a, b), shared in prefixes(trace).items()
    }
    for pair, shared in prefixes(merge([first, second])).items():
        assert shared == expected.get(pair, 0)


@given(first=chains("a"), second=chains("b"))
def test_a_merged_prompt_contains_no_id_twice(first, second):
    for run in merge([first, second]).interactions:
        path = list(run.calls[0].block_ids)
        assert len(set(path)) == len(path)
        assert all(a < b for a, b in pairwise(path))
