"""Test the slices that replace seeds for a recorded trace."""

from fairserve.benchmarks.reproduce.setting import delay_of


def test_seeds_of_a_recorded_trace_are_distinct_delays():
    delays = [delay_of(seed) for seed in range(100)]
    assert delays[0] == 0.0
    assert len(set(delays)) == 100
    assert max(map(abs, delays)) <= 0.02
    for low in range(-20, 20, 4):
        assert any(low <= 1000 * delay < low + 4 for delay in delays)
