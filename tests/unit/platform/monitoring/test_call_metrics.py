"""Counters of calls: bounded labels, and buckets that add up."""

from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState
from fairserve.platform.monitoring import call_metrics
from fairserve.platform.monitoring.call_metrics import CallMetrics, Histogram


def state(pool):
    call = make_call("c")
    call.pool = pool
    return CallState(call, "row", "", 0.0, 0.0)


def values(metrics, name):
    """Return the values of a counter by their last label."""
    (family,) = [each for each in metrics.families() if each.name == f"fairserve_{name}"]
    return {list(each.labels.values())[-1]: each.value for each in family.samples}


def test_models_and_reasons_are_bounded(monkeypatch):
    monkeypatch.setattr(call_metrics, "MAX_MODELS", 2)
    monkeypatch.setattr(call_metrics, "MAX_REASONS", 2)
    metrics = CallMetrics()
    for number in range(5):
        metrics.call_accepted(state(f"m{number}"), 0.0)
        metrics.call_rejected(state("m0"), f"r{number}", 0.0)
        metrics.call_rejected(state("m0"), "r0", 0.0)
    assert values(metrics, "calls_accepted") == {"m0": 1, "m1": 1, "other": 3}
    assert values(metrics, "calls_rejected") == {"r0": 6, "r1": 1, "other": 3}


def test_calls_are_counted_by_the_rule_of_their_run():
    metrics = CallMetrics()
    for rule in ("aliases", "", "aliases"):
        each = state("m")
        each.call.run_rule = rule
        metrics.call_accepted(each, 0.0)
    assert values(metrics, "calls_by_run_rule") == {"aliases": 2, "none": 1}


def test_calls_that_share_rows_are_counted_however_they_end():
    metrics, sharing = CallMetrics(), state("m")
    sharing.own_row = False
    for each in (sharing, state("m")):
        metrics.call_rejected(each, "overloaded", 0.0)
        metrics.call_ended(each, "failed", 0.0)
    (family,) = [f for f in metrics.families() if f.name == "fairserve_calls_sharing_rows"]
    assert [each.value for each in family.samples] == [2]


def test_a_bucket_counts_the_values_up_to_its_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.total == 8.0
