"""Figures from readings, and the sizes of the loads."""

import pytest

from fairserve.benchmarks.bench.gateway.calls import CallShape
from fairserve.benchmarks.bench.gateway.figures import figure_names, results
from fairserve.benchmarks.bench.gateway.load import LoadOutcome
from fairserve.benchmarks.bench.gateway.measurement import (
    MAX_CONCURRENCY,
    TOKENS,
    GatewayTurn,
    MeasuredGateway,
    Plan,
    Rest,
    beyond_idle,
    busy_concurrency,
    rotated,
    split_cores,
)

SHAPE = CallShape("stream", 64)
ROUNDS = 5


def outcome(*total_ms):
    return LoadOutcome(len(total_ms), 0, 10.0, sorted(total_ms), sorted(total_ms))


def turns(cpu_us, added_ms=0.0):
    """Return turns of which each round is slower by one."""
    return [
        GatewayTurn(
            max_rps=100.0 - number,
            saturated_cpu_us=cpu_us,
            rate=50.0,
            cpu_us=cpu_us + number,
            through=outcome(*(10.0 + added_ms + number for _ in range(50))),
            direct=outcome(*(10.0 for _ in range(50))),
        )
        for number in range(ROUNDS)
    ]


def measured(shapes=(SHAPE,), **cpu_us):
    return MeasuredGateway(
        turns={name: {shape: turns(us, 1.0) for shape in shapes} for name, us in cpu_us.items()},
        rests={name: [Rest(0.002, 3e6, 40.0)] * ROUNDS for name in cpu_us},
        concurrency={name: dict.fromkeys(shapes, 20) for name in cpu_us},
    )


def by_name(found):
    return {result.figure.name: result for result in results(found)}


# --- figures ------------------------------------------------------------------------------------


def test_a_full_run_has_every_figure_that_the_help_names():
    found = measured(Plan().shapes, embedded=1000.0, litellm=8000.0)
    names = [result.figure.name for result in results(found)]
    assert sorted(names) == sorted(figure_names())
    for gateway in ("embedded", "litellm"):
        assert f"gateway_{gateway}_idle_mb" in names
        for kind in ("whole", "stream"):
            for tokens in TOKENS:
                for quantity in ("cpu_us", "max_rps", "added_p50_ms", "added_p99_ms"):
                    assert f"gateway_{gateway}_{kind}_{tokens}_{quantity}" in names


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


def test_added_latency_is_of_the_calls_of_all_rounds_together():
    found = by_name(measured(embedded=1000.0))
    median, p99 = (found[f"gateway_embedded_stream_64_added_{p}_ms"] for p in ("p50", "p99"))
    assert median.values == pytest.approx((1.0, 2.0, 3.0, 4.0, 5.0))
    assert median.value == pytest.approx(3.0)
    assert p99.value == pytest.approx(5.0)


def test_the_ratio_is_taken_within_a_round():
    found = by_name(measured(embedded=500.0, litellm=4500.0))
    ratio = found["gateway_litellm_over_embedded_stream_64_cpu"]
    assert ratio.values[0] == 9.0
    assert ratio.values[4] == pytest.approx(4504 / 504)


def test_without_litellm_there_are_no_ratios():
    assert not [name for name in by_name(measured(embedded=1000.0)) if "over" in name]


# --- sizes --------------------------------------------------------------------------------------


def test_open_calls_keep_a_core_busy():
    # A call stays for 0.5 s and costs 10 ms: fifty fill a core, and twice as many are open.
    assert busy_concurrency(0.5, 0.010) == 104
    assert busy_concurrency(0.001, 0.100) == 5
    assert busy_concurrency(0.5, 0.0) == MAX_CONCURRENCY


def test_idle_cpu_does_not_count():
    assert beyond_idle(1.0, 0.1, 4.0) == pytest.approx(0.6)
    assert beyond_idle(0.1, 0.1, 4.0) == 0.0


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
