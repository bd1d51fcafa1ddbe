"""The cost model of a preview is a named one, scaled to what the calls of the window took."""

import pytest
from preview_world import MODEL

from fairserve.platform.tuning.preview.input import PreviewWorkers, ServedCall
from fairserve.platform.tuning.preview.worker_costs import MOST_WAY_S, NAMED, worker_costs

WORKERS = PreviewWorkers(MODEL, 1, 8000, 16, 512)


def served(number, *, queue_s=0.1, duration_s=1.3, output=11, **more):
    values = (f"run-{number}", 1, "completed", 100.0 * number, 50, 0, 0, output)
    row = ServedCall(f"c{number}", "t", "app", "u", MODEL, *values, queue_s, 0.3, duration_s)
    return row._replace(**more)


def alone_s(found, output=11):
    return found.model.prefill_s(50, 0.0) + found.model.decode_s(1, 50, output - 1)


@pytest.mark.parametrize("number", [1, 50])
def test_a_named_model_is_scaled_to_the_calls(number):
    found = worker_costs([served(each) for each in range(number)], WORKERS)
    assert (found.calls, found.model.name) == (number, NAMED)
    assert alone_s(found) == pytest.approx(1.2)
    assert (found.model.loop, found.model.max_prefill_tokens) == ("mixed", 512)
    assert (found.model.kv_capacity_tokens, found.model.max_running) == (8000, 16)


def test_outliers_do_not_count():
    rows = [served(each, duration_s=60.0 if each % 3 == 0 else 1.3) for each in range(31)]
    assert alone_s(worker_costs(rows, WORKERS)) == pytest.approx(1.2)


def test_calls_without_a_time_of_their_first_token_count():
    found = worker_costs([served(each, ttft_s=None) for each in range(9)], WORKERS)
    assert (found.calls, alone_s(found)) == (9, pytest.approx(1.2))


def test_the_delay_to_a_worker_is_that_of_calls_that_wait_least_and_bounded():
    rows = [served(each, queue_s=0.05 if each % 5 == 0 else 0.6) for each in range(50)]
    assert worker_costs(rows, WORKERS).way_s == pytest.approx(0.05)
    rows = [served(each, queue_s=9.0, duration_s=10.2) for each in range(50)]
    assert worker_costs(rows, WORKERS).way_s == MOST_WAY_S


@pytest.mark.parametrize(
    "more",
    [
        {"outcome": "failed"},
        {"queue_s": None},
        {"duration_s": None},
        {"output_tokens": 0},
        {"duration_s": 0.05},
        {"queue_s": -0.1},
    ],
)
def test_without_any_usable_call_the_named_model_is_assumed(more):
    found = worker_costs([served(each, **more) for each in range(50)], WORKERS)
    assert (found.calls, found.way_s, found.model.name) == (0, 0.0, NAMED)


def test_the_smallest_pass_takes_positive_time():
    rows = [served(each, queue_s=0.0, duration_s=1e-9, output=2) for each in range(50)]
    assert worker_costs(rows, WORKERS).model.decode_s(1, 0, 1) > 0
