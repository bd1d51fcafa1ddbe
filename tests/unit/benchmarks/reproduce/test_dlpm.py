"""Test the reports on the DLPM paper: their systems, cells, load and plots."""

import pytest

from fairserve.benchmarks.reproduce.dlpm.figures import (
    FIGURE_7,
    dlpm_figure1,
    dlpm_figure7,
    figure1_systems,
    trace_of,
)
from fairserve.benchmarks.reproduce.main import EXPERIMENTS
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.benchmarks.traces.generate.dlpm_programs import Misbehaviour
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.metrics import CallSample
from fairserve.scheduling.registry import SYSTEMS


def complete(report, rows, folder):
    assert report.name in EXPERIMENTS
    assert len(report.rows) == rows
    for row in report.rows:
        assert set(row.measured) == {column.name for column in report.columns}
    [plot] = report.plots
    assert (folder / plot).stat().st_size > 10_000
    assert report.name in report.text()


@pytest.mark.deep
def test_figure_1_has_all_quanta(tmp_path):
    report = dlpm_figure1(Setting(seeds=1, scale=0.15, plots=tmp_path), (1_000, 300_000))
    complete(report, 3 + 2 * 2, tmp_path)
    assert len(report.checks) == 13


@pytest.mark.deep
def test_every_cell_has_a_row_for_each_system(tmp_path):
    report = dlpm_figure7(Setting(seeds=1, scale=0.1, plots=tmp_path), workers=(1,))
    complete(report, len(FIGURE_7["cells"]) * len(FIGURE_7["systems"]), tmp_path)
    assert len(report.checks) == 11, "the paper's exception has eight workers"


def test_the_published_form_differs_from_the_registered_one_in_two_options():
    systems = figure1_systems([1_000])
    own = {**SYSTEMS["dlpm"].local_options, "quantum": 1_000.0}
    assert systems["dlpm, Q^u 1,000"].local_options == own
    assert systems["dlpm, published, Q^u 1,000"].local_options == {
        **own,
        "max_bypass": 0,
        "refill_when_stuck": False,
    }


@pytest.mark.deep
def test_load_grows_with_the_workers():
    for cell in FIGURE_7["cells"]:
        kind = Misbehaviour(cell["misbehaviour"])
        one, four = (len(trace_of(cell, kind, number, 0, 0.5)) for number in (1, 4))
        assert 2.5 < four / one < 6


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
