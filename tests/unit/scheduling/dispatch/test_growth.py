"""A served call and a tick cost the same with long queues and many tenants as with few."""

import pytest
from counted_lines import lines_of

from fairserve.benchmarks.bench.long_queues import KINDS, OneQueue, Ticks
from fairserve.scheduling.locality import waiting_index


@pytest.mark.parametrize("kind", KINDS)
def test_a_served_call_does_as_much_with_a_long_queue_as_with_a_short_one(kind, monkeypatch):
    """A scan would do eight times as much; heaps grow by a few steps."""
    monkeypatch.setattr(waiting_index, "MOST_WALKS", 16)  # a bound that both queues reach
    lines = {}
    for queued in (60, 480):
        queue = OneQueue("figure", kind, queued=queued, calls=8)
        queue.round()  # what the workers have admitted before is served first
        lines[queued] = lines_of(queue.round)
    assert lines[480] < 1.5 * lines[60]


def test_a_tick_visits_a_share_of_the_tenants():
    lines = {}
    for tenants in (300, 1500):
        ticks = Ticks("figure", tenants=tenants, ticks=1, callers=3)
        ticks.round()
        lines[tenants] = lines_of(ticks.round)
    assert lines[1500] < 1.5 * lines[300]
