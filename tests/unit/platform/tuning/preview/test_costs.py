"""The costs of a preview recover a known factor, and are a named model without data."""

import random
from dataclasses import replace

import pytest
from preview_world import MODEL, TRUTH, History, traffic

from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.platform.tuning.preview.costs import MOST_WAY_S, NAMED, costs_of, slower, way_of
from fairserve.platform.tuning.preview.input import ServedCall

KNOWN = replace(
    COST_MODELS[NAMED],
    kv_capacity_tokens=TRUTH.kv_capacity_tokens,
    max_prefill_tokens=TRUTH.max_prefill_tokens,
    max_running=TRUTH.max_running,
    loop="mixed",
)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return History(tmp_path_factory.mktemp("recording"), traffic(100), costs=slower(KNOWN, 0.8))


def costs(history, served=None):
    options = ReplayOptions(settings=history.settings)
    rows = history.served if served is None else served
    return costs_of(rows, history.workers, history.trace, history.system, options)


def served(number, *, queue_s=0.1, ttft_s=0.3, duration_s=1.3, **more):
    values = (f"run-{number}", "completed", 100.0 * number, queue_s, ttft_s, duration_s)
    return ServedCall("t", "app", "u", MODEL, *values)._replace(**more)


@pytest.mark.parametrize(
    ("factor", "runs"), [(0.02, 40), (0.5, 150), (30.0, 2)], ids=["idle", "busy", "slow"]
)
def test_a_known_factor_is_recovered(tmp_path, factor, runs):
    history = History(tmp_path, traffic(runs), costs=slower(KNOWN, factor), system="fcfs")
    found = costs(history)
    assert (found.source, found.calls) == ("scaled", len(history.served))
    assert found.factor == pytest.approx(factor, rel=0.05)
    assert found.model == slower(KNOWN, found.factor)


def test_near_saturation_the_factor_is_recovered(tmp_path):
    """The median grows faster than the factor there: whole steps would swing around it."""
    truth = slower(KNOWN, 1.2)
    history = History(tmp_path, traffic(200, seconds=100), costs=truth, system="fcfs")
    assert costs(history).factor == pytest.approx(1.2, rel=0.1)


def test_the_wait_for_a_worker_does_not_count(history):
    later = [
        row._replace(queue_s=row.queue_s + 60, duration_s=row.duration_s + 60)
        for row in history.served
    ]
    assert costs(history, later).factor == pytest.approx(costs(history).factor, rel=0.01)


def test_outliers_hardly_count(history):
    rng = random.Random(1)
    rows = [
        row._replace(duration_s=row.duration_s + 500.0) if rng.random() < 0.1 else row
        for row in history.served
    ]
    assert costs(history, rows).factor == pytest.approx(0.8, rel=0.2)


def test_one_call_scales_the_named_model(history):
    assert costs(history, [served(1)]).source == "scaled"


@pytest.mark.parametrize(
    "more",
    [
        {"outcome": "failed"},
        {"queue_s": None},
        {"duration_s": None},
        {"duration_s": 0.1},
        {"queue_s": -0.1},
    ],
)
def test_without_any_usable_call_the_named_model_is_assumed(history, more):
    found = costs(history, [served(number, **more) for number in range(50)])
    assert (found.source, found.calls, found.factor) == ("assumed", 0, 1.0)
    assert found.model == KNOWN


def test_the_smallest_pass_takes_positive_time(history):
    rows = [served(number, queue_s=0.0, duration_s=1e-9) for number in range(50)]
    assert costs(history, rows).model.decode_s(1, 0, 1) > 0


def test_network_delay_is_recovered(tmp_path):
    history = History(tmp_path, traffic(100), system="fcfs", way_s=0.05)
    assert way_of(history.served) == pytest.approx(0.05, rel=0.1)


def test_network_delay_is_bounded():
    assert way_of([served(n, queue_s=9.0, duration_s=10.2) for n in range(30)]) == MOST_WAY_S
    assert way_of([]) == 0.0
    assert way_of([served(1)]) == 0.1
    assert way_of([served(1, queue_s=None)]) == 0.0
