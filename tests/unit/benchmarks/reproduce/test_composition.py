"""Ablation, tuning and the idle system, and what they check."""

import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.reproduce.composition import unsaturated as unsaturated_module
from fairserve.benchmarks.reproduce.composition.ablation import ablation, earns, variants
from fairserve.benchmarks.reproduce.composition.tuning import GRIDS, TUNED, tuned, tuning
from fairserve.benchmarks.reproduce.composition.unsaturated import TRACE, unsaturated
from fairserve.benchmarks.reproduce.composition.workloads import WORKLOADS
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def ratios(*values):
    """Return the ratios of two seeds in one cell."""
    names = ("tok/s", "p99 TTFT (s)", "satisfied, least")
    return [dict(zip(names, ([v] for v in of_seed), strict=True)) for of_seed in values]


@pytest.mark.parametrize(
    ("of_seeds", "worse"),
    [
        (ratios((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)), "nothing"),
        (ratios((0.9, 1.0, 1.0), (0.7, 0.9, 1.1)), "tok/s 0.80 times in chat D=1"),
        (ratios((0.9, 1.0, 1.0), (1.1, 0.9, 1.0)), "nothing"),
        (ratios((1.0, 1.2, 0.5), (1.0, 1.4, 1.0)), "p99 TTFT (s) 1.30 times in chat D=1"),
        (ratios((1.0, 1.0, 0.5), (1.0, 1.0, 0.9)), "satisfied, least 0.70 times in chat D=1"),
    ],
)
def test_a_mechanism_is_needed_if_something_is_worse_without_it(of_seeds, worse):
    check = earns("x", [("chat", 1)], of_seeds)
    assert (check.holds, check.seen) == (worse != "nothing", worse)


def test_a_system_that_is_not_saturated_does_not_queue():
    folder = shared_trace(TRACE).parent
    report = unsaturated(Setting(traces=folder, seeds=1, scale=0.1))
    assert failed(report.checks) == []
    by_name = {each.name: each.measured for each in report.rows}
    assert by_name["fcfs"]["p99 TTFT (s)"].value < 2.0


def test_queueing_despite_free_capacity_is_detected(monkeypatch):
    """With a window of one call some wait at the feeder while workers have capacity."""
    folder = shared_trace(TRACE).parent
    queueing = SYSTEMS["fairserve"].with_options({"feed_window": 1e-6})
    monkeypatch.setattr(unsaturated_module, "SYSTEMS", {**dict(SYSTEMS), "fairserve": queueing})
    monkeypatch.setattr(unsaturated_module, "LOAD", 0.9)
    report = unsaturated(Setting(traces=folder, seeds=1, scale=0.1))
    assert failed(report.checks) == ["fairserve: p99 TTFT at most 1.05 times that of fcfs"]


@pytest.mark.deep
def test_each_mechanism_has_a_row(tmp_path):
    folder = shared_trace("tau_airline_gpt4o.jsonl.gz").parent
    summary, each = ablation(Setting(traces=folder, seeds=1, scale=0.1), workers=(1,))
    names = [r.name for r in summary.rows]
    assert names == list(variants())
    assert {value.value for value in summary.rows[0].measured.values()} == {1.0}
    assert len(each.rows) == len(WORKLOADS) * len(names)


def test_the_best_settings_are_within_their_grids():
    assert set(TUNED) == set(GRIDS)
    for name, options in TUNED.items():
        assert options in GRIDS[name]
        assert tuned(name).router == SYSTEMS[name].router


def test_the_best_setting_of_a_grid_is_found():
    grids = {"vtc": [{}, {"local.predict": "mean"}]}
    report = tuning(Setting(seeds=1, scale=0.02), grids, ["chat"])
    products = [r.measured["product"].value for r in report.rows]
    [check] = report.checks
    assert check.seen.startswith(report.rows[products.index(max(products))].name)
