"""The simulator is compared with an engine; here the engine is the simulator itself."""

import pytest

from fairserve.benchmarks.bench.engine.simulated_run import (
    LoadRuns,
    compare,
    load,
    simulate,
    spread,
)
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.torch.bench.runner import RunnerOutcome, RunnerRequest

COSTS = CostModel(
    "c",
    kv_capacity_tokens=32_768,
    prefill_base_s=0.004,
    prefill_s_per_token=0.001,
    prefill_s_per_pair=0.0,
    decode_base_s=0.01,
    decode_s_per_sequence=0.001,
    decode_s_per_held_token=0.0,
    max_prefill_tokens=64,
    max_running=8,
    loop="mixed",
)


def request(tokens, output, first=0):
    return RunnerRequest(tuple(range(first, first + tokens)), output)


def test_one_request_takes_the_computed_time():
    times = simulate(COSTS, [request(100, 3)], [0.0])
    first_s = 2 * 0.004 + 100 * 0.001
    assert times["mean_ttft_s"] == pytest.approx(first_s)
    assert times["total_s"] == pytest.approx(first_s + 2 * 0.011)


def test_common_prefixes_are_computed_once():
    alone = [request(64, 1, first) for first in (0, 500)]
    same = [request(64, 1), request(64, 1)]
    at_s = [0.0, 1.0]
    # All tokens but the last, which is always computed.
    assert simulate(COSTS, alone, at_s)["total_s"] == pytest.approx(1.0 + 0.004 + 0.064)
    assert simulate(COSTS, same, at_s)["total_s"] == pytest.approx(1.0 + 0.004 + 0.001)


def test_rounds_have_equal_lengths_and_different_tokens():
    one, two = load(1000, 1, False), load(1000, 2, False)
    assert [(len(r.prompt), r.output_tokens) for r in one] == [
        (len(r.prompt), r.output_tokens) for r in two
    ]
    assert one != two
    assert len(one) == 48
    beginnings = [r.prompt[:128] for r in one]
    assert max(beginnings.count(each) for each in beginnings) == 16


def test_arrivals_are_spread_in_order():
    times = spread(50, 10.0)
    assert times == sorted(times)
    assert times[0] == 0.0
    assert 5.0 < times[-1] <= 10.0


class Simulated:
    """Runs requests in no time; returns the simulated times, multiplied by a factor for each round."""

    def __init__(self, *factors):
        self.factors = [factor for factor in factors for _ in range(2)]
        self.arrivals = []

    def run_at(self, requests, arrivals_s):
        self.arrivals.append(list(arrivals_s))
        factor = self.factors.pop(0) if len(self.arrivals) > 1 else 1.0
        times = simulate(COSTS, requests, arrivals_s)
        first_s = (times["mean_ttft_s"] * factor,) * len(requests)
        return RunnerOutcome(times["total_s"] * factor, first_s, ((),) * len(requests))


def test_the_figure_is_the_largest_error_against_medians():
    engine = Simulated(1.0, 1.25, 0.8, 1.0, 1.0)
    runs = LoadRuns(engine.run_at, 1000, on_gpu=False)
    for _ in range(5):
        runs.round()
    result, replay = compare(COSTS, runs)
    assert result.figure.name == "simulator_error"
    assert result.values == pytest.approx((0.0, 0.2, 0.25, 0.0, 0.0))
    assert result.value == pytest.approx(0.0)
    assert set(replay) == {"at_once", "spread"}
    assert replay["at_once"]["total_s"]["error"] == pytest.approx(0.0)
    assert result.details["spread_mean_ttft_error"] == pytest.approx(0.0)
    at_once, spread_s = engine.arrivals[1], engine.arrivals[2]
    assert set(at_once) == {0.0}
    off = LoadRuns(Simulated(1.25, 1.25).run_at, 1000, on_gpu=False)
    off.round()
    assert compare(COSTS, off)[0].value == pytest.approx(0.2)
    assert 0.4 < spread_s[-1] / simulate(COSTS, runs.requests, at_once)["total_s"] <= 0.7
