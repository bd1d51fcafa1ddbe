"""Test the reports on the DLPM paper: their systems, cells, load and plots."""

from fairserve.benchmarks.reproduce.dlpm.figures import (
    figure1_systems,
)
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
