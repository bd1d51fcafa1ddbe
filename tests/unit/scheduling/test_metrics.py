"""Test the metrics on cases that can be computed by hand."""

import pytest

from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.fairness.cost import Extend, Linear, Profiled, SliceWeights
from fairserve.scheduling.metrics import (
    CallSample,
    RunSample,
    Service,
    Windows,
    distribution,
    jain_index,
    service_rates,
    summarise,
    throttling_quality,
)


def call(client, arrival_s, end_s, *, tokens=100, output=50, cached=0, outcome="completed", **more):
    return CallSample(
        client=client,
        interaction_id=more.pop("run", f"{client}-{arrival_s}"),
        arrival_s=arrival_s,
        end_s=end_s,
        outcome=outcome,
        usage=TokenUsage(tokens, 0, cached, output),
        first_token_s=more.pop("first_token_s", arrival_s),
        **more,
    )


def test_jain_index():
    assert jain_index([5, 5, 5]) == pytest.approx(1.0)
    assert jain_index([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain_index([]) == 1.0
    assert jain_index([0, 0]) == 1.0


def test_distribution():
    assert distribution([]) == {"mean": None, "p50": None, "p99": None}
    figures = distribution(range(101))
    assert (figures["mean"], figures["p50"], figures["p99"]) == (50, 50, 99)


def test_costs_of_calls():
    usage = TokenUsage(input_tokens=80, system_tokens=20, cached_tokens=30, output_tokens=10)
    assert Linear()(usage) == 120
    assert Extend()(usage) == 90
    assert Profiled()(usage) == pytest.approx(210 + 10 + 40 + 3.2 + 11.46)
    assert Profiled()(TokenUsage()) == 0
    weights = SliceWeights()
    assert weights.slice(usage) == 80 + 40 + 10
    assert weights.slice(usage, 0.0) == 70 + 0 + 10
    assert weights.slice(usage, 0.5) == 75 + 20 + 10


def test_completed_calls_count_without_a_first_token():
    calls = {
        "whole": [call("whole", 0, 10, first_token_s=None, queue_delay_s=2.0)],
        "refused": [call("refused", 0, 10, first_token_s=None, outcome="refused")],
    }
    assert service_rates(calls, Linear()) == {"whole": 20.0, "refused": 0.0}
    assert Service(calls["whole"], Linear()).between(2.0, 6.0) == pytest.approx(100.0)
    assert Service(calls["whole"], Linear()).between(0.0, 2.0) == 0.0


def test_rates_are_measured_while_all_clients_are_active():
    calls = {
        "early": [call("early", 0, 10), call("early", 10, 20)],
        "late": [call("late", 10, 20)],
    }
    assert service_rates(calls, Linear()) == {"early": 20.0, "late": 20.0}


def test_service_difference_of_an_unserved_backlog():
    """One client gets 200 units per second; the other requests the same and gets none."""
    got = [call("a", t, t + 1.0, tokens=100, output=50) for t in range(120)]
    starved = [call("b", t, 200.0, tokens=100, output=50, first_token_s=199.0) for t in range(120)]
    figures = summarise(got + starved, [], windows=Windows(30, 30))["service_difference"]
    assert figures["max"] == pytest.approx(200.0, rel=0.02)


def test_demand_may_have_a_separate_cost():
    """A client gets all its 200 units a second; measured at half the cost, half of that is excess."""
    calls = [call("big", t, t + 1.0, tokens=1000) for t in range(120)]
    calls += [call("small", t, t + 1.0, tokens=100, output=50) for t in range(120)]
    half = Linear(0.5, 1.0)
    figures = summarise(calls, [], demand_cost=half, windows=Windows(30, 30))
    assert figures["service_difference"]["max"] == pytest.approx(100.0, rel=0.02)


def test_a_fully_served_client_has_no_service_difference():
    calls = [call("big", t, t + 1.0, tokens=1000) for t in range(120)]
    calls += [call("small", t, t + 1.0, tokens=10, output=1) for t in range(120)]
    figures = summarise(calls, [])["service_difference"]
    assert figures["max"] < 1.0


def test_summary_counts():
    calls = [
        call("a", 0, 2, run="r1", queue_delay_s=0.1, group="good", cached=50),
        call("b", 0, 4, run="r2", queue_delay_s=3.0, group="flood"),
        call(
            "b",
            1,
            1,
            tokens=0,
            output=0,
            run="r2",
            outcome="refused",
            mid_run=True,
            group="flood",
        ),
    ]
    runs = [
        RunSample("a", "r1", 0, 2, complete=True, group="good"),
        RunSample("b", "r2", 0, 4, False, wasted_tokens=150, cause="throttled", group="flood"),
    ]
    summary = summarise(calls, runs)
    assert summary["refused_calls"] == 1
    assert summary["refused_mid_run"] == 1
    assert summary["aborted_interactions"] == 1
    assert summary["wasted_tokens"] == {"throttled": 150, "cancelled": 0, "failed": 0, "expired": 0}
    assert summary["delayed_users_share"] == 0.5
    assert summary["served_users_share"] == 0.5
    assert summary["prefix_hit_rate"] == 0.25
    assert summary["makespan_s"] == 4
    assert summary["throughput_tokens_per_s"]["total"] == 75
    assert summary["groups"]["good"]["aborted_interactions"] == 0
    assert summary["per_client"]["b"]["calls"] == 2
    assert "groups" not in summary["groups"]["good"]


def test_an_empty_run_has_a_summary():
    summary = summarise([], [])
    assert summary["ttft_s"]["p99"] is None
    assert summary["throughput_tokens_per_s"]["total"] == 0


def rejected_call(client, arrival_s):
    return call(client, arrival_s, arrival_s, tokens=0, output=0, outcome="refused")


def test_throttling_quality():
    """Throttled are a, b and c; abusers are a, d and one that never called."""
    calls = [
        call("a", 0, 1, tokens=300, output=100),
        rejected_call("a", 1),
        rejected_call("a", 2),
        rejected_call("b", 1),
        rejected_call("c", 1),
        call("d", 0, 1, tokens=100, output=0),
        call("e", 0, 1, tokens=400, output=100),
    ]
    assert throttling_quality(calls, {"a", "d", "silent"}) == {
        "throttled_users": 3,
        "precision": pytest.approx(1 / 3),
        "recall": 0.5,
        "abusive_tokens": 500,
        "abusive_tokens_share": 0.5,
    }


def test_throttling_quality_without_clients():
    quality = throttling_quality([call("a", 0, 1)], {"b"})
    assert (quality["throttled_users"], quality["precision"], quality["recall"]) == (0, None, None)
    assert throttling_quality([], set())["abusive_tokens_share"] == 0.0


def test_throttling_is_reported_for_abusive_groups():
    calls = [call("a", 0, 1, group="abusive"), rejected_call("a", 1), call("b", 0, 1, group="good")]
    summary = summarise(calls, [])
    assert summary["throttling"] == throttling_quality(calls, {"a"})
    assert summary["throttling"]["precision"] == 1.0
    assert "throttling" not in summary["groups"]["abusive"]
    assert "throttling" not in summarise([call("b", 0, 1, group="good")], [])


def test_a_call_cancelled_before_it_started_was_delayed():
    late = call("a", 0, 5, tokens=0, output=0, outcome="cancelled", first_token_s=None)
    rejected = call("b", 0, 5, tokens=0, output=0, outcome="refused", first_token_s=None)
    assert summarise([late, rejected], [])["delayed_users_share"] == 0.5
