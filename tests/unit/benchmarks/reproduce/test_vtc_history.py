"""Figures read from the curves of one run equal values computed by hand."""

import math

import pytest

from fairserve.benchmarks.reproduce.vtc.service_history import ServiceHistory
from fairserve.benchmarks.simulate.curves import Curves, curves_of
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.fairness.cost import Linear
from fairserve.scheduling.metrics import CallSample, Windows


@pytest.fixture
def history():
    """Return a history: a gets 10 a second, b 4 and later 8; the window at 40 s is past the end."""
    return ServiceHistory(
        Curves(
            centres_s=(10.0, 20.0, 30.0, 40.0),
            service_per_s={"t/a": (10.0,) * 4, "t/b": (4.0, 6.0, 8.0, 8.0)},
            response_s={"t/a": (1.0, None, 4.0, 99.0), "t/b": (None,) * 4},
            accumulated={"t/a": (100.0, 200.0, 300.0, 400.0), "t/b": (40.0, 80.0, 160.0, 240.0)},
            backlogged={"t/a": (True,) * 4, "t/b": (True, False, True, True)},
        ),
        30.0,
        tokens_per_s=5.0,
        refused_share=0.25,
    )


def test_windows_past_the_end_are_ignored(history):
    assert history.end_s == 30.0
    assert list(history.times_s) == [10.0, 20.0, 30.0]
    assert history.greatest_response_s("a", "b") == 4.0


def test_differences_between_clients(history):
    assert list(history.difference) == [60.0, 120.0, 140.0]
    assert history.largest_difference == 140.0
    assert history.interval_difference == 20.0, "from 20 s to 30 s, both backlogged"
    assert history.growth_per_min == pytest.approx(60 * 4.0)


def test_the_worst_interval_may_begin_late():
    """b gains 100, then loses 150: from 10 s to 20 s they differ more than ever in total."""
    curves = Curves(
        (10.0, 20.0),
        {"a": (0.0, 0.0), "b": (0.0, 0.0)},
        {"a": (None, None), "b": (None, None)},
        {"a": (0.0, 150.0), "b": (100.0, 100.0)},
        {"a": (True, True), "b": (True, True)},
    )
    history = ServiceHistory(curves, 20.0, tokens_per_s=0.0, refused_share=0.0)
    assert history.largest_difference == 100.0
    assert history.interval_difference == 150.0


def test_service_is_interpolated_between_window_centres(history):
    assert history.served_per_s("b", 0.0, 30.0) == pytest.approx(160 / 30)
    assert history.served_per_s("b", 15.0, 25.0) == pytest.approx(6.0)
    assert history.served_per_s("b", 20.0, 40.0) == pytest.approx(8.0)
    assert history.total_per_s(0.0, 10.0) == pytest.approx(14.0)


def test_responses_cover_windows_that_have_one(history):
    assert history.mean_response_s("a") == 2.5
    assert history.mean_response_s("a", 15.0) == 4.0
    assert math.isnan(history.mean_response_s("a", 15.0, 25.0))
    assert math.isnan(history.mean_response_s("b"))


def call(arrival_s, queue_delay_s, end_s):
    return CallSample(
        "a",
        "1",
        arrival_s,
        end_s,
        "completed",
        TokenUsage(1, 0, 1),
        queue_delay_s,
        first_token_s=end_s,
    )


def test_a_client_is_backlogged_while_a_call_waits():
    """Calls wait from 5 s to 20 s and from 20 s to 40 s, then from 41 s to the end, never started."""
    calls = [
        call(0.0, 0.0, 1.0),
        call(5.0, 15.0, 60.0),
        call(20.0, 20.0, 60.0),
        call(41.0, None, 60.0),
    ]
    curves = curves_of(calls, Linear(), Windows(half_s=20.0))
    assert curves.centres_s == (20.0, 25.0, 30.0, 35.0, 40.0)
    assert curves.backlogged == {"a": (True,) * 5}
    late = [call(0.0, 22.0, 60.0), call(23.0, 30.0, 60.0)]
    assert curves_of(late, Linear(), Windows(half_s=20.0)).backlogged == {
        "a": (True, False, True, True, True)
    }
