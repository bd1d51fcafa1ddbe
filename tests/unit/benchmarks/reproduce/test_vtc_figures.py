"""Claims about the figures of the VTC paper hold, and fail when an unfair system is substituted."""

import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.vtc import tables
from fairserve.benchmarks.reproduce.vtc.figures import FIGURES, synthetic_figure
from fairserve.benchmarks.reproduce.vtc.recorded import (
    by_requests,
    over_share,
    replayed,
    response_figures,
)
from fairserve.scheduling.registry import SYSTEMS

RECORDED = (12, 13, 18)
SHORT = Setting(seeds=1, scale=0.4)
LONGER = Setting(seeds=1, scale=0.6)


def failing(report):
    return [f"{check.claim}: {check.seen}" for check in report.checks if not check.holds]


def test_a_figure_like_another_has_its_statements_and_more():
    first, sixth = (FIGURES[number]["statements"] for number in (3, 6))
    assert sixth[: len(first)] == first
    assert [each["of"] for each in sixth[len(first) :]] == [["vtc", "fairserve"]]


@pytest.mark.parametrize("number", FIGURES)
@pytest.mark.deep
def test_the_claims_hold(number):
    report = synthetic_figure(LONGER if number == 15 else SHORT, number)
    assert report.name == f"vtc-figure{number}"
    assert report.checks
    assert not failing(report)
    measured = {column.name for column in report.columns}
    assert all(set(row.measured) == measured for row in report.rows)


UNFAIR = [
    (3, "fcfs", ["2U", "does not grow"]),
    (4, "fcfs", ["client 1, under its share", "client 2, under its share", "half as long"]),
    (5, "fcfs", ["half as long", "client 2 has at least 95 %"]),
    (6, "fcfs", ["2U", "does not grow", "while off, gets what client 2 gets"]),
    (7, "fcfs", ["does not grow"]),
    (8, "fcfs", ["2U", "does not grow"]),
    (9, "fcfs", ["response time stays", "in no window"]),
    (10, "lcf", ["both over their share get the same"]),
    (10, "fcfs", ["both over their share get the same", "client 1 waits no longer"]),
]


@pytest.mark.parametrize("fair", ["vtc", "fairserve"])
@pytest.mark.parametrize(
    ("number", "instead", "claims"),
    [pytest.param(*case, marks=() if case[0] == 3 else pytest.mark.deep) for case in UNFAIR],
)
def test_an_unfair_system_fails_the_claims(monkeypatch, fair, number, instead, claims):
    """``lcf`` is VTC without the lift."""
    known = {name: SYSTEMS[name] for name in ("fcfs", "lcf", "vtc", "fairserve")}
    monkeypatch.setattr(tables, "SYSTEMS", {**known, fair: SYSTEMS[instead]})
    monkeypatch.setattr(tables, "_OURS_OPTIONS", {})  # other systems do not have these options
    failed = failing(synthetic_figure(SHORT, number))
    for claim in claims:
        assert any(each.startswith(fair) and claim in each for each in failed), claim


@pytest.fixture(scope="module")
def trace():
    folder = shared_trace("vtc_real_trace.csv.gz").parent
    return Setting(traces=folder).recorded("vtc_real_trace.csv.gz")


INSTEAD = [
    ("vtc", "fcfs", {12, 13}),
    ("vtc", "rpm-20", {12}),
    ("fairserve", "fcfs", {12, 13, 18}),
    ("fairserve", "lcf", {18}),
    ("rpm-5", "rpm-30", {13}),
    ("vtc, profiled", "fcfs", {18}),
]
"""Replaced systems by their replacement, and the figures whose claims then fail."""


@pytest.mark.deep
def test_claims_about_the_recorded_trace_hold_and_can_fail(trace, tmp_path):
    """This is one test, since the replays take most of its time."""
    setting = Setting(seeds=1, plots=tmp_path)
    histories = replayed(setting, trace)
    reports = response_figures(setting, trace, histories)
    assert [report.name for report in reports] == [f"vtc-figure{number}" for number in RECORDED]
    for report in reports:
        assert not failing(report)
        assert report.plots == (f"{report.name}.png",)
        assert (tmp_path / report.plots[0]).stat().st_size > 10_000
    for name, instead, failed in INSTEAD:
        other = {**histories, name: histories[instead]}
        wrong = [report for report in response_figures(SHORT, trace, other) if failing(report)]
        numbers = {int(report.name.removeprefix("vtc-figure")) for report in wrong}
        assert numbers == failed, (name, instead)


def test_clients_over_their_share_are_found(trace):
    """The busiest request 217, 322 and 359 a second; with less capacity, others exceed their share."""
    order = by_requests(trace)
    assert len(order) == 27
    assert set(over_share(trace, 1350.0)) == set(order[-3:])
    assert over_share(trace, 2000.0) == []
    assert len(over_share(trace, 27.0)) > 20


def test_a_figure_is_drawn_into_the_configured_folder(tmp_path):
    setting = Setting(seeds=1, scale=0.2, plots=tmp_path / "new")
    report = synthetic_figure(setting, 3)
    assert report.plots == ("vtc-figure3.png",)
    first = (tmp_path / "new" / "vtc-figure3.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    synthetic_figure(setting, 3)
    assert (tmp_path / "new" / "vtc-figure3.png").read_bytes() == first
