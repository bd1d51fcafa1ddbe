"""Figures from readings, and the sizes of the loads."""

import math
from dataclasses import replace

import pytest

from fairserve.benchmarks.bench.gateway.calls import Shape
from fairserve.benchmarks.bench.gateway.end_delays import between, buckets_of, quantile_s, together
from fairserve.benchmarks.bench.gateway.figures import RATIO_TARGETS, figure_names, results
from fairserve.benchmarks.bench.gateway.load import Outcome
from fairserve.benchmarks.bench.gateway.measurement import (
    MAX_CONCURRENCY,
    TOKENS,
    Measured,
    Plan,
    Rest,
    Turn,
    beyond_idle,
    busy_concurrency,
    rotated,
    split_cores,
)
from fairserve.benchmarks.bench.gateway.processes import Cpu

SHAPE = Shape("stream", 64)
ROUNDS = 5
BUCKETS = {0.01: 40, 0.02: 98, 0.05: 100, math.inf: 100}


def outcome(*total_ms):
    return Outcome(len(total_ms), 0, 10.0, sorted(total_ms), sorted(total_ms))


def turns(cpu_us, added_ms=0.0):
    """Return turns of which each round is slower by one."""
    return [
        Turn(
            max_rps=100.0 - number,
            saturated_cpu_us=cpu_us,
            rate=50.0,
            cpu_us=cpu_us + number,
            python_cpu_us=cpu_us / 2 + number,
            end_delays=BUCKETS,
            through=outcome(*(10.0 + added_ms + number for _ in range(50))),
            direct=outcome(*(10.0 for _ in range(50))),
        )
        for number in range(ROUNDS)
    ]


def measured(shapes=(SHAPE,), **cpu_us):
    return Measured(
        turns={name: {shape: turns(us, 1.0) for shape in shapes} for name, us in cpu_us.items()},
        rests={name: [Rest(Cpu(0.002, 0.001), 3e6, 40.0)] * ROUNDS for name in cpu_us},
        tokenising_us=[200.0] * ROUNDS,
        prompt_tokens=300,
        concurrency={name: dict.fromkeys(shapes, 20) for name in cpu_us},
    )


def by_name(found):
    return {result.figure.name: result for result in results(found)}


# --- figures ------------------------------------------------------------------------------------


def test_a_full_run_has_every_figure_that_the_help_names():
    found = measured(Plan().shapes, embedded=1000.0, envoy=500.0, litellm=8000.0)
    names = [result.figure.name for result in results(found)]
    assert sorted(names) == sorted(figure_names())
    for gateway in ("embedded", "envoy", "litellm"):
        assert f"gateway_{gateway}_idle_mb" in names
        for kind in ("whole", "stream"):
            for tokens in TOKENS:
                for quantity in ("cpu_us", "max_rps", "added_p50_ms", "added_p99_ms"):
                    assert f"gateway_{gateway}_{kind}_{tokens}_{quantity}" in names
    assert {name.split("_")[1] for name in names if "_python_" in name} == {"embedded", "envoy"}
    assert {name.split("_")[1] for name in names if "_end_delay_" in name} == {"envoy"}


def test_a_figure_is_the_median_of_its_rounds_beside_those_of_the_others():
    found = by_name(measured(embedded=1000.0, litellm=8000.0))
    figure = found["gateway_embedded_stream_64_cpu_us"].to_plain()
    assert figure["value"] == 1002.0
    assert figure["spread"] == [1000.0, 1004.0]
    assert figure["peers"] == {"litellm": 8002.0}
    assert figure["target"] is None
    assert figure["details"]["open_calls_at_max"] == 20
    assert found["gateway_litellm_idle_mb"].value == 3.0
    assert found["gateway_litellm_idle_cpu_ms_per_s"].value == 2.0
    assert found["gateway_embedded_open_call_us_per_s"].value == 40.0
    assert found["gateway_tokenise_us"].details == {"prompt_tokens": 300}


def test_added_latency_is_of_the_calls_of_all_rounds_together():
    found = by_name(measured(embedded=1000.0))
    median, p99 = (found[f"gateway_embedded_stream_64_added_{p}_ms"] for p in ("p50", "p99"))
    assert median.values == pytest.approx((1.0, 2.0, 3.0, 4.0, 5.0))
    assert median.value == pytest.approx(3.0)
    assert p99.value == pytest.approx(5.0)


def test_the_cpu_of_python_is_a_part_of_that_of_a_call():
    found = by_name(measured(embedded=1000.0, envoy=500.0))
    figure = found["gateway_envoy_stream_64_python_cpu_us"].to_plain()
    assert (figure["value"], figure["spread"]) == (252.0, [250.0, 254.0])
    assert figure["peers"] == {"embedded": 502.0}


def test_the_delay_of_ends_is_of_the_calls_of_all_rounds_together_and_has_a_target():
    found = measured(envoy=500.0)
    rounds = found.turns["envoy"][SHAPE]
    rounds[0] = replace(rounds[0], end_delays={0.01: 0, 0.02: 0, 0.05: 500, math.inf: 500})
    figure = by_name(found)["gateway_envoy_stream_64_end_delay_p99_ms"]
    assert figure.figure.target == 20.0
    assert figure.values == pytest.approx((49.7, 35.0, 35.0, 35.0, 35.0))
    assert figure.value == pytest.approx(20 + 30 * (891 - 392) / 508)


def test_the_ratio_has_a_target_for_envoy_only_and_is_taken_within_a_round():
    found = by_name(measured(embedded=1000.0, envoy=500.0, litellm=4500.0))
    envoy = found["gateway_litellm_over_envoy_stream_64_cpu"]
    assert envoy.figure.target == RATIO_TARGETS["stream"] == 8.0
    assert envoy.values[0] == 9.0
    assert envoy.values[4] == pytest.approx(4504 / 504)
    assert envoy.figure.reached(envoy.value, 8.0)
    assert found["gateway_litellm_over_embedded_stream_64_cpu"].figure.target is None
    assert RATIO_TARGETS["whole"] == 4.0


def test_without_litellm_there_are_no_ratios():
    assert not [name for name in by_name(measured(embedded=1000.0)) if "over" in name]


# --- delays of ends ------------------------------------------------------------------------------


def test_buckets_of_a_phase_are_the_difference_of_two_scrapes():
    name = "fairserve_envoy_end_delay_seconds"
    text = f"""# TYPE {name} histogram
{name}_bucket{{le="0.01"}} 3.0
{name}_bucket{{le="+Inf"}} 4.0
{name}_count 4.0
{name}_sum 0.5
# TYPE fairserve_calls_running gauge
fairserve_calls_running 1.0
"""
    assert buckets_of(text) == {0.01: 3, math.inf: 4}
    assert between({0.01: 1, math.inf: 2}, buckets_of(text)) == {0.01: 2, math.inf: 2}
    assert buckets_of("") == between({}, {}) == {}
    assert together([BUCKETS, BUCKETS])[0.02] == 196


@pytest.mark.parametrize(
    ("share", "expected_s"), [(0.2, 0.005), (0.4, 0.01), (0.69, 0.015), (0.99, 0.035), (1.0, 0.05)]
)
def test_a_quantile_is_interpolated_within_its_bucket(share, expected_s):
    assert quantile_s(BUCKETS, share) == pytest.approx(expected_s)


def test_a_quantile_beyond_the_last_bound_is_that_bound():
    assert quantile_s({0.01: 1, 0.02: 1, math.inf: 9}, 0.99) == 0.02


# --- sizes --------------------------------------------------------------------------------------


def test_open_calls_keep_a_core_busy():
    # A call stays for 0.5 s and costs 10 ms: fifty fill a core, and twice as many are open.
    assert busy_concurrency(0.5, 0.010) == 104
    assert busy_concurrency(0.001, 0.100) == 5
    assert busy_concurrency(0.5, 0.0) == MAX_CONCURRENCY


def test_idle_cpu_does_not_count():
    used = beyond_idle(Cpu(2.0, 1.0), Cpu(3.0, 1.1), Cpu(0.1, 0.1), 4.0)
    assert used == pytest.approx(Cpu(0.6, 0.0))


@pytest.mark.parametrize(
    ("cores", "gateway", "expected"),
    [
        ([0, 1, 2, 3], 1, ([0], [1, 2, 3])),
        ([0, 1, 2, 3], 3, ([0, 1, 2], [3])),
        ([4, 5], 2, ([4, 5], [5])),
        ([7], 1, ([7], [7])),
        ([], 1, ([], [])),
    ],
)
def test_the_gateway_has_cores_of_its_own_if_there_are_enough(cores, gateway, expected):
    assert split_cores(cores, gateway) == expected


def test_the_order_of_gateways_rotates():
    assert [rotated("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
