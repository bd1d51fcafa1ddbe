"""The cost model of a preview recovers known parameters, and works with little data."""

import random

import pytest
from preview_world import MODEL, TRUTH, History, traffic

from fairserve.platform.tuning.preview.fit import (
    FALLBACK,
    MIN_CALLS,
    MOST_WAY_S,
    fit_costs,
)
from fairserve.platform.tuning.preview.input import PreviewWorkers, ServedCall

TIMES = ("prefill_base_s", "prefill_s_per_token", "decode_base_s", "decode_s_per_sequence")
WORKERS = PreviewWorkers(MODEL, 1, 8000, 16, 512)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return History(tmp_path_factory.mktemp("recording"), traffic(150))


def served(number, *, queue_s=0.1, ttft_s=0.3, duration_s=1.3, output=11, **more):
    values = (f"run-{number}", 1, "completed", 100.0 * number, 50, 0, 0, output)
    row = ServedCall("t", "app", "u", MODEL, *values, queue_s, ttft_s, duration_s, "w")
    return row._replace(**more)


@pytest.mark.parametrize("workers", [1, 2])
def test_known_parameters_are_recovered(tmp_path, workers):
    history = History(tmp_path, traffic(150), workers=workers, system="fcfs")
    fit = fit_costs(history.served, history.workers)
    assert (fit.source, fit.calls) == ("fitted", len(history.served))
    assert fit.typical_error < 0.01
    for name in TIMES:
        assert getattr(fit.costs, name) == pytest.approx(getattr(TRUTH, name), rel=0.05)
    assert fit.costs.kv_capacity_tokens == TRUTH.kv_capacity_tokens


def test_network_delay_is_recovered(tmp_path):
    history = History(tmp_path, traffic(100), system="fcfs", way_s=0.05)
    fit = fit_costs(history.served, history.workers)
    assert fit.way_s == pytest.approx(0.05, rel=0.1)
    assert fit.costs.decode_base_s == pytest.approx(TRUTH.decode_base_s, rel=0.1)


def test_network_delay_is_bounded():
    fit = fit_costs(
        [served(n, queue_s=9.0, ttft_s=9.2, duration_s=10.2) for n in range(30)], WORKERS
    )
    assert fit.way_s == MOST_WAY_S


def test_the_order_of_the_rows_does_not_matter(history):
    rows = list(history.served)
    random.Random(1).shuffle(rows)
    assert fit_costs(rows, WORKERS) == fit_costs(history.served, WORKERS)


def test_outliers_hardly_count(history):
    rng = random.Random(1)
    rows = [
        row._replace(duration_s=row.duration_s + 5.0) if rng.random() < 0.1 else row
        for row in history.served
    ]
    costs = fit_costs(rows, WORKERS).costs
    assert costs.decode_base_s == pytest.approx(TRUTH.decode_base_s, rel=0.2)
    assert costs.prefill_s_per_token == pytest.approx(TRUTH.prefill_s_per_token, rel=0.2)


def test_noisy_times_are_fitted_approximately(history):
    rng = random.Random(1)
    rows = [
        row._replace(
            ttft_s=row.queue_s + (row.ttft_s - row.queue_s) * rng.uniform(0.8, 1.2),
            duration_s=row.ttft_s + (row.duration_s - row.ttft_s) * rng.uniform(1.0, 1.2),
        )
        for row in history.served
    ]
    fit = fit_costs(rows, WORKERS)
    assert fit.typical_error < 0.2
    assert fit.costs.prefill_base_s == pytest.approx(TRUTH.prefill_base_s, rel=0.3)
    assert fit.costs.decode_base_s == pytest.approx(TRUTH.decode_base_s, rel=0.3)


def test_calls_that_are_not_streamed_give_a_model_of_their_whole_time(history):
    whole = [row._replace(ttft_s=None) for row in history.served]
    fit = fit_costs(whole, WORKERS)
    assert (fit.source, fit.calls) == ("fitted", len(whole))
    assert fit.typical_error < 0.2
    assert fit.costs.decode_base_s == pytest.approx(TRUTH.decode_base_s, rel=0.3)
    mixed = [row if at % 2 else whole[at] for at, row in enumerate(history.served)]
    fit = fit_costs(mixed, WORKERS)
    assert fit.typical_error < 0.1
    assert fit.costs.decode_base_s == pytest.approx(TRUTH.decode_base_s, rel=0.1)
    assert fit.costs.prefill_base_s == pytest.approx(TRUTH.prefill_base_s, rel=0.2)


def test_a_few_calls_scale_a_known_model():
    fit = fit_costs([served(number) for number in range(MIN_CALLS - 1)], WORKERS)
    assert (fit.source, fit.calls, fit.costs.name) == ("scaled", MIN_CALLS - 1, FALLBACK)
    alone_s = fit.costs.prefill_s(50, 0.0) + fit.costs.decode_s(1, 50, 10)
    assert alone_s == pytest.approx(1.2)
    assert (fit.costs.loop, fit.costs.max_prefill_tokens) == ("mixed", 512)


@pytest.mark.parametrize(
    "more",
    [
        {"outcome": "failed"},
        {"queue_s": None},
        {"duration_s": None},
        {"output_tokens": 0},
        {"ttft_s": 0.05},
        {"duration_s": 0.2},
        {"queue_s": -0.1},
    ],
)
def test_without_any_usable_call_a_known_model_is_assumed(more):
    fit = fit_costs([served(number, **more) for number in range(50)], WORKERS)
    assert (fit.source, fit.calls, fit.typical_error) == ("assumed", 0, None)


def test_identical_calls_give_a_usable_model():
    fit = fit_costs([served(number) for number in range(50)], WORKERS)
    assert fit.source == "fitted"
    assert fit.costs.prefill_s(50, 0.0) == pytest.approx(0.2, rel=0.05)
    assert fit.costs.decode_s(1, 50, 10) == pytest.approx(1.0, rel=0.05)


def test_one_token_outputs_give_a_usable_model():
    rows = [served(number, output=1, duration_s=0.3) for number in range(50)]
    assert fit_costs(rows, WORKERS).costs.decode_s(1, 50, 1) > 0


def test_the_smallest_pass_takes_positive_time():
    rows = [
        served(number, queue_s=0.0, ttft_s=1e-9, duration_s=1e-9, output=2) for number in range(50)
    ]
    assert fit_costs(rows, WORKERS).costs.decode_s(1, 0, 1) > 0
