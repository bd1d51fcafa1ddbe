"""Studies of profiles conserve the work, and their claims fail when the figures disagree."""

import math
from fnmatch import fnmatchcase

import pytest

from fairserve.benchmarks.reproduce.profiles import attempts as by
from fairserve.benchmarks.reproduce.profiles import backlogged_apps, convergence, levers
from fairserve.benchmarks.reproduce.profiles.contest import (
    CHEAT,
    honest_runs,
)
from fairserve.benchmarks.reproduce.profiles.service import LEARNING_INTERVAL_S
from fairserve.benchmarks.reproduce.study import statements_of
from fairserve.engine.simulated.traces.model import Trace
from fairserve.platform.background.jobs.jobs import PROFILES_INTERVAL_S

RUNS = honest_runs(CHEAT, 0, 60.0)


def tokens(runs):
    return sum(call.prompt_tokens + call.output_tokens for run in runs for call in run.calls)


def useful(attempt):
    return sum(
        attempt.useful.get(
            f"{run.interaction_id}/{call.call_id}", call.prompt_tokens + call.output_tokens
        )
        for run in attempt.runs
        for call in run.calls
    )


TRIES = {name: lever.attempt for name, lever in levers.LEVERS.items()}


@pytest.mark.parametrize("name", TRIES)
def test_an_attempt_is_the_same_work(name):
    """The work is independent of how it is sent; calls that are split lose the remainder."""
    attempt = TRIES[name](RUNS)
    left_over = tokens(RUNS[len(RUNS) // 3 * 3 :]) if name == levers.MERGES else 0
    assert useful(attempt) == pytest.approx(tokens(RUNS) - left_over, rel=0.02)
    assert {run.tenant for run in attempt.runs} == {CHEAT}


def test_the_studies_learn_as_often_as_the_server():
    assert PROFILES_INTERVAL_S == LEARNING_INTERVAL_S


# --- convergence ----------------------------------------------------------------------------------


def held(*factors):
    return {
        "profiles": {
            "app": [
                {"since_s": 10.0 * n, "interactions": 5 * n, "factor": factor}
                for n, factor in enumerate(factors)
            ]
        },
        "typical_per_s": {"app": [1.0, 1.0, 3.0], "other": [1.0, 1.0, 1.0]},
    }


def test_convergence_time_of_the_call_size():
    seen = convergence._seen("app", held(10), held(10, 0.9, 2.0, 1.2, 0.8), held(1))
    assert (seen["first"], seen["first_s"]) == (5, 10.0)
    assert seen["interactions"] == 15, "it strayed once"
    assert (seen["worst"], seen["changes"]) == (2.0, 5)
    assert seen["share"]["learned"] == pytest.approx(1.5), "of the last third"
    never = convergence._seen("app", held(10), held(10, 0.9, 2.0), held(1))
    assert never["interactions"] == math.inf


def test_the_typical_call_size_is_weighted_by_number():
    true = by.larger_from(backlogged_apps.profiles_of(Trace("", 16, tuple(RUNS)))[CHEAT], 1.0, 1)
    twice_deep = by.larger_from(true, 2.0, 4)
    assert backlogged_apps.typical_size(true, true, {1: 5, 4: 1}) == 1.0
    assert backlogged_apps.typical_size(twice_deep, true, {4: 7}) == pytest.approx(2.0)
    assert 1.0 < backlogged_apps.typical_size(twice_deep, true, {1: 50, 4: 1}) < 1.1


def test_patterns_of_statements_match_what_they_mean():
    apps = [f"{name}, 10x too large" for name in (*convergence.APPS, convergence.LONG)]
    for entry, names in zip(
        levers._STUDY["report"], (apps, [*levers.LEVERS], [*levers.CAPPED]), strict=True
    ):
        for statement in statements_of(entry["statements"]):
            for pattern in (*statement.rows, *statement.but, statement.row or "*"):
                assert any(fnmatchcase(name, pattern) for name in names), pattern
    constant = {name for name in levers.LEVERS if fnmatchcase(name, "a constant *")}
    assert constant | {"the same system prompt of 16,384 tokens in every third run"} == {
        *levers.CONSTANT_PROMPTS
    }
