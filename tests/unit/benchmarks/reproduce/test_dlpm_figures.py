"""Test Figures 1, 4 and 8 to 12 of the DLPM paper at a small scale: rows, columns, plots, workloads."""

import pytest

from fairserve.benchmarks.reproduce.dlpm import (
    figure1,
    figure4,
    figure8,
    figure9,
    figure10,
    figure11,
    figure12,
)
from fairserve.benchmarks.reproduce.dlpm.central_steps import CentralSteps
from fairserve.benchmarks.reproduce.dlpm.systems import ONE_WORKER, PUBLISHED, SEVERAL_WORKERS
from fairserve.benchmarks.reproduce.main import EXPERIMENTS
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS

QUANTA = (1_000, 300_000)
CLIENTS = (5, 20)


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


@pytest.mark.deep
def test_figure_4_has_all_sizes(tmp_path):
    report = figure4.dlpm_figure4(small(0.1, tmp_path), (1, 2), (20, 40))
    places = [(1, 200), (2, 200), (8, 200), (8, 20), (8, 40)]
    complete(report, [figure4.row_name(place) for place in places], tmp_path)


@pytest.mark.parametrize(
    ("experiment", "scale", "systems"),
    [
        (figure8.dlpm_figure8, 0.1, figure8.SYSTEMS),
        (figure9.dlpm_figure9, 0.15, SEVERAL_WORKERS),
        (figure12.dlpm_figure12, 0.25, ONE_WORKER),
    ],
)
@pytest.mark.deep
def test_figures_over_time_have_all_systems(tmp_path, experiment, scale, systems):
    complete(experiment(small(scale, tmp_path)), list(systems), tmp_path)


@pytest.mark.deep
def test_figure_10_has_all_quanta_and_systems(tmp_path):
    report = figure10.dlpm_figure10(small(0.15, tmp_path), (2_000, 40_000))
    whats = [*figure10.OTHERS, 2_000, 40_000]
    names = [figure10.row_name(kind, what) for kind in figure10.KINDS for what in whats]
    complete(report, names, tmp_path)


@pytest.mark.deep
def test_figure_11_has_all_numbers_of_clients(tmp_path):
    report = figure11.dlpm_figure11(small(0.05, tmp_path), CLIENTS)
    names = [figure11.row_name(name, number) for name in ONE_WORKER for number in CLIENTS]
    complete(report, names, tmp_path)


def test_the_published_form_differs_from_the_registered_one_in_two_options():
    assert figure1.system("dlpm") is SYSTEMS["dlpm"]
    options = figure1.system(PUBLISHED).local_options
    assert options == {"max_bypass": 0, "refill_when_stuck": False}


def test_the_flood_ends_in_the_middle():
    trace = figure8.trace_of(0, 0.4)
    rates = {}
    for run in trace.interactions:
        part = "flood" if run.arrival_s < 60.0 else "calm"
        rates[run.user, part] = rates.get((run.user, part), 0) + 1
    for client in figure8.FLOODING:
        assert rates[client, "flood"] > 6 * rates.get((client, "calm"), 1)
    for client in figure8.CALM:
        assert rates[client, "flood"] < 40


def test_the_strawman_matches_more_with_a_longer_queue():
    central = CentralSteps(2, 30, worker_tokens=5_000, seed=1)
    times = central.measure(2)
    assert len(central) == 30
    assert min(times.match, times.indexed, times.decision) > 0
