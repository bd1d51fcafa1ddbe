"""Test Figure 7 of the DLPM paper: its cells, and claims that fail when the figures disagree."""

import pytest

from fairserve.benchmarks.reproduce.dlpm.figure7 import (
    COLUMNS,
    EXCEPTION,
    OURS,
    PAPER,
    RATES,
    Cells,
    claims,
    dlpm_figure7,
    trace_of,
)
from fairserve.benchmarks.reproduce.report import ReportRow, ReportSpread
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.metrics import CallSample


@pytest.mark.deep
def test_every_cell_has_a_row_for_each_system(tmp_path):
    report = dlpm_figure7(Setting(seeds=1, scale=0.1, plots=tmp_path), workers=(1,))
    assert [each.name for each in tmp_path.iterdir()] == list(report.plots) == ["dlpm-figure7.png"]
    assert len(report.rows) == len(RATES) * (len(PAPER) + 1)
    for row in report.rows:
        assert set(row.measured) == {column.name for column in COLUMNS}
        assert row.measured["tok/s"].value > 0
        assert 0 < row.measured["Jain"].value <= 1
    assert "dlpm-figure7" in report.text()


@pytest.mark.deep
def test_load_grows_with_the_workers():
    for workload, misbehaviour in RATES:
        one, four = (len(trace_of(workload, misbehaviour, d, 0, 0.5)) for d in (1, 4))
        assert 2.5 < four / one < 6


GOOD = {"vtc": (100, 0.99, 10), "rr-lpm": (120, 0.6, 60), "preble": (210, 0.7, 40)}
"""Tokens a second, Jain's index and p99; those of d2lpm and the default are 220, 0.95 and 12."""


def cells(cell=("chat", "S1", 2), **others):
    figures = {"d2lpm": (220, 0.95, 12), OURS: (220, 0.96, 11), **GOOD, **others}
    rows = {}
    for name, (throughput, jain, p99) in figures.items():
        values = {"tok/s": throughput, "Jain": jain, "satisfied": jain, "p99 (s)": p99}
        rows[cell, name] = ReportRow(
            name, {column: ReportSpread(v, v, v) for column, v in values.items()}
        )
    return Cells(rows)


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def test_claims_hold_for_the_published_figures():
    assert failed(claims(cells())) == []


def test_a_system_that_starves_a_client_is_compared():
    starving = {"rr-lpm": (120, 0.0, 60)}
    assert failed(claims(cells(**starving))) == []
    assert "no less than that of rr-lpm" not in " ".join(
        failed(claims(cells(**starving, d2lpm=(220, 0.0, 12))))
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"vtc": (230, 0.99, 10)},
            ["up to 2 times vtc's", "never below vtc's", "vtc nowhere beats"],
        ),
        ({"rr-lpm": (219, 0.6, 60)}, ["up to 1.8 times rr-lpm's"]),
        ({"preble": (210, 0.7, 6)}, ["wait longer under preble"]),
        ({"preble": (210, 0.99, 40)}, ["no less than that of preble"]),
        ({"preble": (240, 0.99, 40)}, ["no less than that of preble", "preble nowhere beats"]),
    ],
)
def test_a_claim_fails_on_disagreeing_figures(change, words):
    wrong = failed(claims(cells(**change)))
    assert len(wrong) == len(words)
    for claim, part in zip(wrong, words, strict=True):
        assert part in claim


def test_the_exception_of_the_paper_is_checked_in_its_cell():
    claim = "preble's throughput is above d2lpm's, the paper's exception"
    assert failed(claims(cells(EXCEPTION))) == [claim]
    assert failed(claims(cells(EXCEPTION, preble=(230, 0.7, 40)))) == []


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
