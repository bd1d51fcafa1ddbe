"""Test the arrival processes: rates, spread, silence."""

import numpy as np
import pytest

from fairserve.benchmarks.traces.generate.arrivals import (
    EvenArrivals,
    GammaArrivals,
    OnOffArrivals,
    PhasedArrivals,
    RampArrivals,
)

PROCESSES = [
    EvenArrivals(2.5),
    GammaArrivals(2.5),
    GammaArrivals(2.5, cv=3.0),
    RampArrivals(0.5, 4.5),
    RampArrivals(4.5, 0.5),
    OnOffArrivals(EvenArrivals(5.0), 10.0, 10.0),
    PhasedArrivals(((200.0, EvenArrivals(4.0)), (200.0, GammaArrivals(1.0)))),
]


def times(process, duration_s=400.0, seed=0):
    return process.times_s(duration_s, np.random.default_rng(seed))


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_times_ascend_within_the_duration_at_the_mean_rate(process):
    seen = [times(process, seed=seed) for seed in range(20)]
    for one in seen:
        assert (np.diff(one) >= 0).all()
        assert one[0] >= 0
        assert one[-1] < 400
    assert np.mean([len(one) for one in seen]) == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("cv", [0.25, 1.0, 2.0])
def test_gamma_gaps_have_the_configured_spread(cv):
    gaps = np.diff(times(GammaArrivals(10.0, cv), 3000.0))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.05)


def test_even_gaps_are_equal_and_the_offset_covers_one_gap():
    assert np.diff(times(EvenArrivals(4.0))) == pytest.approx(0.25)
    offsets = [times(EvenArrivals(4.0), seed=seed)[0] for seed in range(50)]
    assert 0 <= min(offsets) < 0.05 < 0.2 < max(offsets) < 0.25


def test_a_ramp_rises_linearly():
    counts, _ = np.histogram(times(RampArrivals(1.0, 9.0)), bins=4, range=(0, 400))
    assert list(counts) == pytest.approx([200, 400, 600, 800], abs=2)


def test_arrivals_happen_only_in_on_phases():
    at = times(OnOffArrivals(EvenArrivals(1.0), on_s=60.0, off_s=30.0), 600.0) % 90.0
    assert at.max() < 60.0
    assert len(at) == pytest.approx(6 * 60 + 60, abs=1)  # six periods and one on phase


def test_phases_follow_each_other_and_end():
    process = PhasedArrivals(((100.0, EvenArrivals(1.0)), (100.0, EvenArrivals(3.0))))
    counts, _ = np.histogram(times(process), bins=4, range=(0, 400))
    assert list(counts) == [100, 300, 0, 0]
    assert len(times(process, 50.0)) == 50
