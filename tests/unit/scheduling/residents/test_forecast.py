"""The most memory that runs need together, on examples that can be computed by hand."""

import pytest

from fairserve.scheduling.residents.forecast import Forecast


def forecast(*runs):
    found = Forecast()
    for run in runs:
        found.count(1, *run)
    return found


def test_runs_at_one_stage_need_all_their_growth():
    assert forecast((1000, 3000, 3.0), (1000, 3000, 3.0)).most(2000) == 8000


def test_runs_at_different_stages_need_less():
    """When the first ends, the second has made one of three calls."""
    assert forecast((4000, 0, 0.0), (3000, 1000, 1.0), (1000, 3000, 3.0)).most(8000) == 8000
    assert forecast((3000, 1000, 1.0), (1000, 3000, 3.0)).most(4000) == 6000


def test_what_runs_share_leaves_with_the_last_of_them():
    """Each has 1,000 tokens in common with the other and 500 for itself."""
    runs = [(1500, 0, 1.0), (1500, 1500, 3.0)]
    assert forecast(*runs).most(2000) == pytest.approx(2500)


def test_a_run_that_was_removed_needs_nothing():
    found = forecast((1000, 3000, 3.0), (500, 700, 1.0))
    found.count(-1, 1000, 3000, 3.0)
    assert found.most(500) == 1200
    found.count(-1, 500, 700, 1.0)
    assert found.most(0) == 0
