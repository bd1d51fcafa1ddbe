"""Claims about simulated systems are checked seed by seed."""

import math

from fairserve.benchmarks.reproduce.fairserve.checks import always, less, not_beaten


def seeds(*values):
    return [{"x": x, "rate": 10.0} for x in values]


def x(summary):
    return summary["x"]


def rate(summary):
    return summary["rate"]


def test_less_compares_seed_by_seed():
    simulated = {"a": seeds(1, 50), "b": seeds(2, 60), "c": seeds(2, 40)}
    check = less("claim", simulated, "a", "b", x)
    assert check.holds
    assert check.seen == "a 26, b 31, 1.22 times as much"
    mixed = less("claim", simulated, "a", "c", x)
    assert not mixed.holds
    assert "(in 1 of 2 seeds)" in mixed.seen
    assert not less("claim", simulated, "a", "b", x, times=1.5).holds
    assert not less("claim", {"a": seeds(math.nan), "b": seeds(1)}, "a", "b", x).holds


def test_always_includes_its_bounds_and_rejects_missing_values():
    assert always("claim", seeds(1, 2, 3), x, 1, 3).holds
    assert not always("claim", seeds(1, 2, 4), x, 1, 3).holds
    missing = always("claim", seeds(1, math.nan), x, 0, 3)
    assert (missing.holds, missing.seen) == (False, "none (in 1 of 2 seeds)")


def test_a_system_beats_another_only_beyond_the_spread_of_both():
    def systems(**other):
        return {
            "ours": [{"x": 5, "rate": 10}, {"x": 6, "rate": 11}],
            "other": [{"x": 4, "rate": 12, **other}, {"x": 3, "rate": 13}],
        }

    beaten = not_beaten(systems(), "ours", ["other"], x, "x", rate)
    assert not beaten.holds
    assert beaten.seen.endswith("beaten by other")
    assert not_beaten(systems(x=5), "ours", ["other"], x, "x", rate).holds
    assert not_beaten(systems(rate=11), "ours", ["other"], x, "x", rate).holds
