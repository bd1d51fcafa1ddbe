"""The figures of calls equal those of plain Python that processes one call at a time."""

import random

import pytest

from fairserve.interactions.profiles.profile import MAX_STAGES, StageProfile
from fairserve.interactions.profiles.profile_statistics import (
    MAX_AGENTS,
    RUN_LENGTHS,
    CallSeen,
    RunSeen,
    figures_of,
    run_lengths,
)

HALF_LIFE_S = 1000.0
KINDS = ("input_tokens", "system_tokens", "output_tokens")


def figures(calls=(), runs=(), min_samples=3):
    return figures_of(calls, runs, min_samples=min_samples, half_life_s=HALF_LIFE_S)


def seen(tokens, *, stage=1, agent=None, age_s=0.0, system=0, output=1):
    return CallSeen(stage, agent, tokens, system, output, age_s)


def quantile(values, weights, share):
    """Return the smallest value up to which the given share of the weight lies."""
    total, so_far = sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        so_far += weight
        if so_far >= share * total * (1 - 1e-12):
            return value
    raise AssertionError


def weights_of(observations):
    """Return weights that halve with each half-life."""
    return [0.5 ** (each.age_s / HALF_LIFE_S) for each in observations]


def clipped_mean(values, weights):
    most = quantile(values, weights, 0.98)
    clipped = [min(value, most) for value in values]
    return sum(v * w for v, w in zip(clipped, weights, strict=True)) / sum(weights)


def check(spread, values, weights):
    assert spread.median == quantile(values, weights, 0.5)
    assert spread.p90 == quantile(values, weights, 0.9)
    assert spread.expected == pytest.approx(clipped_mean(values, weights))


def random_calls(rng, number):
    return [
        CallSeen(
            rng.choice([1, 1, 2, 3, 9]),
            rng.choice([None, "x", "y"]),
            rng.choice([0, 5, 100, 4000]),
            rng.choice([0, 300]),
            rng.randint(0, 50),
            rng.uniform(0, 3 * HALF_LIFE_S),
        )
        for _ in range(number)
    ]


def test_tokens_of_a_call_are_those_of_prompt_and_output():
    assert seen(5, system=300, output=7).tokens == 312


@pytest.mark.parametrize("number", range(20))
def test_figures_equal_those_of_plain_python(number):
    rng = random.Random(number)
    calls = random_calls(rng, 60)
    found, least = figures(calls, min_samples=5), 5
    weighed = sorted(zip(calls, weights_of(calls), strict=True), key=lambda each: each[0].stage)
    for stage, of_stage in enumerate(found.stages, start=1):
        later = [each for each in weighed if each[0].stage >= stage]
        own = [each for each in later if each[0].stage == stage]
        used = own if len(own) >= least else later[:least]
        assert of_stage.calls == len(used)
        if len(own) < least and len({each[0].stage for each in used[len(own) :]}) > 1:
            continue  # the choice of calls from a later stage is unspecified
        for kind in KINDS:
            values = [getattr(call, kind) for call, *_ in used]
            check(getattr(of_stage, kind), values, [weight for _, weight in used])
    deepest = max(call.stage for call in calls)
    assert len(found.stages) <= deepest
    assert sum(call.stage > len(found.stages) for call in calls) < least
    for agent, of_agent in found.agents.items():
        own = [each for each in weighed if each[0].agent == agent and each[0].stage == 1]
        if len(own) >= least:
            values = [call.output_tokens for call, *_ in own]
            spread = of_agent[0].output_tokens
            check(spread, values, [weight for _, weight in own])
    assert set(found.agents) == {"x", "y"}


def test_a_call_in_the_future_counts_as_new():
    calls = [seen(100, age_s=-9 * HALF_LIFE_S), seen(100), seen(400)]
    assert figures(calls).stages[0].input_tokens.expected == pytest.approx(200.0)


def test_calls_of_any_age_count():
    calls = [seen(100, age_s=1e9 * HALF_LIFE_S)] * 3
    assert figures(calls).stages[0].expected == StageProfile(100, 0, 1)


def test_a_stage_with_too_few_calls_includes_the_next():
    calls = [seen(100, stage=1)] * 3 + [seen(200, stage=2)] + [seen(800, stage=3)] * 3
    stages = figures(calls).stages
    assert [stage.calls for stage in stages] == [3, 3, 3]
    assert [stage.input_tokens.expected for stage in stages] == [100, (200 + 800 + 800) / 3, 800]


def test_stages_past_the_last_count_for_the_last():
    found = figures([seen(10, stage=stage) for stage in range(1, 3 * MAX_STAGES)], min_samples=20)
    assert len(found.stages) == MAX_STAGES
    assert found.stages[-1].calls == 2 * MAX_STAGES
    assert found.stages[0].calls == 20


def test_agents_differ_by_the_output_of_their_calls():
    calls = [seen(100, agent="short", output=5)] * 4 + [seen(100, agent="long", output=500)] * 3
    calls += [seen(100, agent="rare", output=9)] * 2 + [seen(100, output=7)]
    agents = figures(calls).agents
    assert {name: of[0].output_tokens.expected for name, of in agents.items()} == {
        "short": 5,
        "long": 500,
    }


def test_known_agents_are_bounded():
    calls = [
        seen(1, agent=f"a{number}") for number in range(100) for _ in range(3 + (number >= 60))
    ]
    assert set(figures(calls).agents) == {f"a{number}" for number in range(60, 60 + MAX_AGENTS)}


def test_calls_without_tokens_are_expected_to_output_one():
    assert figures([seen(0, output=0)] * 3).stages[0].expected == StageProfile(0, 0, 1)


# --- how long interactions are --------------------------------------------------------------------


def run(calls, ended=True, age_s=0.0):
    return RunSeen(calls, ended, age_s)


def survival(runs, weights):
    """Return the Kaplan-Meier estimate by a slow computation: by length, the share of longer runs."""
    left, shares = 1.0, {}
    for length in sorted({each.calls for each in runs if each.ended}):
        reached = sum(w for each, w in zip(runs, weights, strict=True) if each.calls >= length)
        ends = sum(
            w for each, w in zip(runs, weights, strict=True) if each.calls == length and each.ended
        )
        shares[length] = left * ends / reached
        left *= 1 - ends / reached
    return shares


@pytest.mark.parametrize("number", range(20))
def test_lengths_equal_the_slow_estimate(number):
    rng = random.Random(number)
    runs = [
        RunSeen(
            rng.choice([1, 2, 3, 5, 8, 30]),
            rng.random() < 0.6,
            rng.uniform(0, 3 * HALF_LIFE_S),
        )
        for _ in range(50)
    ]
    shares = survival(runs, weights_of(runs))
    found = figures(runs=runs)
    check(found.calls_per_interaction, list(shares), list(shares.values()))
    wanted = [
        quantile(list(shares), list(shares.values()), (step + 0.5) / RUN_LENGTHS)
        for step in range(RUN_LENGTHS)
    ]
    assert list(found.run_lengths) == wanted
    assert found.interactions == sum(each.ended for each in runs)


def test_lengths_are_unknown_before_a_run_has_ended():
    found = figures(runs=[run(9, ended=False)] * 5)
    assert (found.calls_per_interaction, found.run_lengths, found.interactions) == (None, (), 0)


def test_quantiles_represent_equal_shares():
    assert run_lengths(range(1, 102)) == tuple(range(6, 100, 10))
    assert run_lengths([4]) == (4.0,) * RUN_LENGTHS


# --- the longest usual run, and what is cached ------------------------------------------------------


def test_the_99th_percentile_of_runs_is_known_once_50_have_ended():
    runs = [RunSeen(n, True, 0.0, 100 * n) for n in range(1, 50)]
    assert (figures(runs=runs).p99_calls, figures(runs=runs).p99_tokens) == (None, None)
    found = figures(runs=[*runs, RunSeen(50, False, 0.0, 1)])
    assert found.p99_calls is None, "one of them has not ended"
    usual = [RunSeen(4, True, 0.0, 400)] * 995
    found = figures(runs=usual + [RunSeen(900, True, 0.0, 90_000)] * 5)
    assert (found.p99_calls, found.p99_tokens) == (4, 400), "a two-hundredth is not usual"
    found = figures(runs=usual[:980] + [RunSeen(900, True, 0.0, 90_000)] * 20)
    assert (found.p99_calls, found.p99_tokens) == (900, 90_000)


def test_the_cached_share_of_a_stage_is_learned():
    calls = [CallSeen(1, None, 100, 20, 5, 0.0, cached) for cached in (0, 60, 120)]
    stage = figures(calls).stages[0]
    assert stage.expected.cached_tokens == stage.cached_tokens.expected == 60
    told_too_much = [CallSeen(1, None, 100, 20, 5, 0.0, 500)] * 3
    assert figures(told_too_much).stages[0].expected.cached_tokens == 120
