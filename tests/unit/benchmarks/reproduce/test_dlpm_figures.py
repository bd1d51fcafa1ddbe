"""Test Figure 1 of the DLPM paper at a small scale: rows, columns, plots, workloads."""

import pytest

from fairserve.benchmarks.reproduce.dlpm import figure1
from fairserve.benchmarks.reproduce.dlpm.figure1 import PUBLISHED
from fairserve.benchmarks.reproduce.main import EXPERIMENTS
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS

QUANTA = (1_000, 300_000)


def small(scale, folder):
    return Setting(seeds=1, scale=scale, plots=folder)


def complete(report, names, folder):
    assert report.name in EXPERIMENTS
    assert [row.name for row in report.rows] == names
    for row in report.rows:
        assert set(row.measured) == {column.name for column in report.columns}
    assert report.checks
    [plot] = report.plots
    assert (folder / plot).stat().st_size > 10_000
    assert report.name in report.text()


@pytest.mark.deep
def test_figure_1_has_all_quanta(tmp_path):
    report = figure1.dlpm_figure1(small(0.15, tmp_path), QUANTA)
    names = [figure1.row_name(v, q) for v in figure1.VARIANTS for q in QUANTA]
    complete(report, [*figure1.ENDS, *names], tmp_path)


def test_the_published_form_differs_from_the_registered_one_in_two_options():
    assert figure1.system("dlpm") is SYSTEMS["dlpm"]
    options = figure1.system(PUBLISHED).local_options
    assert options == {"max_bypass": 0, "refill_when_stuck": False}
