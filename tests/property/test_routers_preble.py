"""Test Preble's decisions: its computed cost, its choice of worker (E2), and rebalancing."""

import pytest
from preble_run import WORKERS, Run
from virtual_cluster import prompt

from fairserve.benchmarks.policies.preble_options import PrebleOptions

# --- the cost, by hand ----------------------------------------------------------------------------


def test_the_cost_of_one_prompt_is_the_computed_one():
    run = Run()
    assert run.place("a", (1, 320)) == "w0"
    assert run.costs() == [0.32 + 40 * 0.1, 0, 0], "all missed; one runs, 45 tokens expected"
    run.finish("a", 30)
    assert run.costs() == [0.32, 0, 0], "what it needed stays in the window"
    assert run.place("b", (1, 320)) == "w0"
    assert run.costs() == [0.5 * 2 * 0.32 + 30 * 0.1, 0, 0], "half missed; 30 is the median now"
    run.finish("b", 10)
    run.place("c", (1, 320))
    third = 1 - 640 / 960
    assert run.costs() == [pytest.approx(third * 3 * 0.32 + 20 * 0.1), 0, 0]


def test_the_default_output_is_that_of_the_paper():
    run = Run(output_tokens=PrebleOptions().output_tokens, token_s=0.15)
    run.place("a", (1, 320))
    assert run.costs()[0] == pytest.approx(0.32 + 45 * 0.15)


def test_a_prefix_at_two_workers_divides_its_prefill():
    run = Run()
    run.place("a", (1, 320), on="w0")
    run.place("b", (1, 320), on="w1")
    prefill = 0.5 * 2 * 0.32 / 2
    assert run.costs() == [prefill + 4.0, prefill + 4.0, 0]


def test_a_split_leaves_the_larger_part_important():
    """A has 160 shared tokens and 320 more; B has 160 + 80 and is not important: it counts for 160."""
    run = Run()
    run.place("a", (1, 160), (2, 320))
    assert run.costs()[0] == pytest.approx(0.48 + 4.0)
    assert run.place("b", (1, 160), (3, 80)) == "w0", "160 of 240 matched"
    of_a = 1.0 * 1 * 0.32 + 1 * 4.0
    of_shared = (1 - 160 / 240) * 1 * 0.16 + 2 * 4.0
    assert run.costs()[0] == pytest.approx(of_a + of_shared, abs=1e-6)
    run.finish("a")
    run.finish("b")
    assert run.costs()[0] == pytest.approx(0.32 + 0.16 / 3, abs=1e-6)


def test_statistics_move_up_with_the_importance():
    """320 split at 240: the lower 80 are not important any more, the 240 become important."""
    run = Run()
    run.place("a", (1, 240), (2, 80))
    run.place("b", (1, 240), (3, 80))
    statistics = list(run.router._important.values())
    assert [(s.calls, len(s.node.keys)) for s in statistics] == [(2, 15)]
    assert run.costs()[0] == pytest.approx((1 - 240 / 640) * 2 * 0.24 + 2 * 4.0)


def test_prompts_without_a_block_count():
    run = Run(prefill_s=0.02)
    assert [run.place(f"c{n}", (n, 5)) for n in range(3)] == WORKERS


# --- E2 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "worker"), [(160, "w1"), (144, "w0")])
def test_a_match_above_half_of_the_prompt_is_exploited(own, worker):
    run = Run()
    run.place("a", (1, 160))
    assert run.choose("b", (1, 160), (2, own)) == worker


def test_the_candidate_of_least_cost_is_chosen():
    """The published argmin would choose w1, which is number 1 of the candidates w1 and w2."""
    run = Run()
    run.place("a", (1, 320), on="w1")
    run.place("b", (1, 320), on="w2")
    run.place("c", (7, 1600), on="w1")
    assert run.choose("d", (1, 320), (2, 16)) == "w2"


def test_the_nearest_allocated_prefix_is_used():
    run = Run()
    run.place("a", (1, 160), (2, 320), on="w2")
    run.place("b", (1, 160), (3, 320), on="w1")
    assert run.choose("c", (1, 160), (2, 320), (4, 16)) == "w2"
    assert run.choose("d", (1, 160), (3, 320), (4, 16)) == "w1"
    closed = {"open_workers": ["w0", "w1"]}
    assert run.choose("e", (1, 160), (2, 320), (4, 16), **closed) == "w1", "it has the 160"
    assert run.choose("f", (1, 160), (2, 320), (4, 16), open_workers=["w0"]) == "w0"


def test_exploration_follows_the_load():
    run = Run()
    assert [run.place(f"c{n}", (n, 320 - 32 * n)) for n in range(3)] == WORKERS
    assert run.place("d", (9, 320)) == "w2", "it has the least to compute"
    run.finish("c1", 5)
    assert run.choose("e", (10, 320)) == "w1"


def test_the_time_per_token_is_measured_by_ticks():
    run = Run()
    run.router.tick(100.0)
    run.place("a", (1, 320), on="w0")
    run.router.tick(130.0)  # still in its queue
    run.router.started("a")
    run.router.tick(135.0)
    run.finish("a", 10)
    assert run.router._loads.token_s["w0"].values() == [0.1, 0.5]
    run.place("b", (1, 320), on="w0")
    assert run.costs()[0] == pytest.approx(0.32 + 10 * (0.1 + 0.5) / 2)


def test_without_time_the_time_per_token_is_unchanged():
    run = Run()
    run.place("a", (1, 320), on="w0")
    run.router.started("a")
    run.finish("a", 10)
    assert run.router._loads.token_s["w0"].values() == [0.1]


def test_evicted_prompts_count_for_the_cost():
    """w0 would lose a prompt that two calls missed, w1 one that was computed once."""
    run = Run(["w0", "w1"], eviction=True)
    run.place("a", (1, 320), on="w0")
    run.place("b", (2, 160), on="w0")
    run.place("c", (3, 480), on="w1")
    assert run.router.cost_ns("w0", 16) == run.router.cost_ns("w0"), "in use"
    for name in "abc":
        run.finish(name)
    assert run.router.cost_ns("w0", 16) / 1e9 == pytest.approx(0.48 + 0.32), (
        "the least recent first"
    )
    assert run.router.cost_ns("w0", 320) / 1e9 == pytest.approx(0.48 + 0.32)
    assert run.router.cost_ns("w0", 321) / 1e9 == pytest.approx(0.48 + 0.48)
    assert run.router.cost_ns("w1", 321) / 1e9 == pytest.approx(0.48 + 0.48)
    run.locality.tree.evict(run.locality._hasher.keys(prompt((1, 320))), "w0")
    assert run.router.cost_ns("w0", 16) / 1e9 == pytest.approx(0.48 + 0.16), "gone already"


# --- rebalancing ----------------------------------------------------------------------------------


def skewed(**options):
    """Return three prompts of 160, 320 and 480 tokens at w0, two completed calls each; w1 is idle."""
    run = Run(["w0", "w1"], rebalance_after=50, rebalance_ratio=1.5, **options)
    for twice in "ab":
        for number in (1, 2, 3):
            run.place(f"{twice}{number}", (number, 160 * number), on="w0")
            run.finish(f"{twice}{number}")
    return run


def fill(run, calls):
    """Add single calls that count for no shared node."""
    for number in range(calls):
        name = f"single{len(run.router._window)}-{number}"
        run.place(name, (1000 + len(run.router._window), 16), on="w0")
        run.finish(name)


def where(run, number):
    keys = run.locality._hasher.keys(prompt((number, 160)))
    return list(run.router._tree.find(keys)[1].allocated)


def test_rebalancing_moves_the_cheapest_first_while_that_helps():
    run = skewed()
    fill(run, 93)
    assert [where(run, n) for n in (1, 2, 3)] == [["w0"]] * 3, "99 calls: not before 100"
    fill(run, 1)
    # 0.16 + 0.32 + 0.48 at w0: 0.16 moves, 0.32 may (0.80 >= 0.16 + 0.32), 0.48 may not (0.48 <
    # 0.96)
    assert [where(run, n) for n in (1, 2, 3)] == [["w1"], ["w1"], ["w0"]]
    assert run.choose("x", (2, 320), (70, 16), open_workers=["w0", "w1"]) == "w1"


@pytest.mark.parametrize(("tokens", "moves"), [(656, False), (624, True)])
def test_only_loads_that_differ_by_the_ratio_are_rebalanced(tokens, moves):
    """The loads are 0.96 at w0 against 0.656 or 0.624 at w1."""
    run = skewed()
    for twice in "ab":
        run.place(f"{twice}4", (4, tokens), on="w1")
        run.finish(f"{twice}4")
    fill(run, 92)
    assert (where(run, 1) == ["w1"]) == moves


def test_rebalancing_continues_with_the_next_loaded_worker():
    """With 0.96 at w0, 0.704 at w1, w2 idle: 0.16 and 0.32 move, then 0.704 is under 1.5 * 0.48."""
    run = Run(rebalance_after=5, rebalance_ratio=1.5)
    for twice in "ab":
        for number, worker in [(1, "w0"), (2, "w0"), (3, "w0"), (4, "w1"), (5, "w1")]:
            tokens = {1: 160, 2: 320, 3: 480, 4: 80, 5: 624}[number]
            run.place(f"{twice}{number}", (number, tokens), on=worker)
            run.finish(f"{twice}{number}")
    fill(run, 4)
    assert [where(run, n) for n in (1, 2, 3)] == [["w0"]] * 3
    fill(run, 1)
    assert [where(run, n) for n in (1, 2, 3, 4, 5)] == [["w2"], ["w2"], ["w0"], ["w1"], ["w1"]]


def test_a_single_node_is_assigned_to_both_workers():
    run = Run(["w0", "w1"], rebalance_after=1, rebalance_ratio=1.5)
    run.place("a", (1, 160), on="w0")
    run.finish("a")
    run.place("b", (1, 160), on="w0")
    assert where(run, 1) == ["w0", "w1"]


def test_rebalancing_may_be_disabled():
    run = Run(["w0", "w1"], rebalance_after=1)
    for name in "abc":
        run.place(name, (1, 160), on="w0")
    assert where(run, 1) == ["w0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exploit_share": -0.1}, "exploit_share is -0.1; allowed: 0 to 1"),
        ({"window_calls": 0}, "window_calls is 0; allowed: over 0"),
        ({"rebalance_after": -1}, "rebalance_after is -1; allowed: 0 or more"),
        ({"rebalance_ratio": 0.9}, "rebalance_ratio is 0.9; allowed: 1 or more, or null"),
        ({"prefill_s": -1.0}, "prefill_s is -1.0; allowed: 0 or more"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        PrebleOptions(**options)
