"""Test the reports on the DLPM paper: their systems, cells, load and plots."""

import pytest

from fairserve.benchmarks.reproduce.dlpm.figures import (
    figure1_systems,
)
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.metrics import CallSample
from fairserve.scheduling.registry import SYSTEMS


def test_the_published_form_differs_from_the_registered_one_in_two_options():
    systems = figure1_systems([1_000])
    own = {**SYSTEMS["dlpm"].local_options, "quantum": 1_000.0}
    assert systems["dlpm, Q^u 1,000"].local_options == own
    assert systems["dlpm, published, Q^u 1,000"].local_options == {
        **own,
        "max_bypass": 0,
        "refill_when_stuck": False,
    }


def test_steady_figures_exclude_start_and_end():
    def sample(client, begin_s, end_s, tokens):
        usage = TokenUsage(0, 0, 0, tokens)
        return CallSample(client, client, 0.0, end_s, "completed", usage, 0.0, begin_s)

    calls = [sample("a", 0.0, 10.0, 100), sample("b", 5.0, 15.0, 100), sample("c", 20.0, 30.0, 999)]
    result = ReplayResult(calls, [], 1.0)
    [figures] = steady(Trace("t", 16, ()), result, begin_s=5.0, end_s=10.0).values()
    assert figures["tokens_per_s"] == pytest.approx(20.0)
    assert figures["jain_index"] == pytest.approx(2 / 3)
    assert figures["jain_index_extend"] == pytest.approx(2 / 3)
