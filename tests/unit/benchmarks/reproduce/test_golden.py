"""The short cases give the figures that are committed in ``benchmarks/short_cases.json``.

After an intended change ``fairserve reproduce short-cases NAME`` writes the new ones. The long runs,
which are near the published figures, are marked deep.
"""

import pytest

from fairserve.benchmarks.evidence import short_cases
from fairserve.benchmarks.evidence.origin import read_figures
from fairserve.benchmarks.evidence.reports import EVIDENCE
from fairserve.benchmarks.evidence.short_cases import SHORT_CASES, differences, figures_of
from fairserve.benchmarks.reproduce.report import Report, ReportColumn, ReportRow, ReportSpread


@pytest.mark.parametrize("name", SHORT_CASES)
def test_figures_equal_the_committed_ones(name):
    assert differences(figures_of(name), read_figures()[name]) == []


def test_each_case_is_committed_and_covers_a_report():
    assert read_figures().keys() == SHORT_CASES.keys()
    assert {name for each in EVIDENCE.values() for name in each.short_cases} == set(SHORT_CASES)


def test_a_system_has_figures_in_each_report_of_a_case(monkeypatch):
    columns = [ReportColumn("avg", float)]
    made = [
        Report("many", title, "", columns, [ReportRow("vtc", {"avg": ReportSpread((value,))})], [])
        for title, value in (("first", 1.0), ("second", 2.0))
    ]
    monkeypatch.setattr(short_cases, "SHORT_CASES", {"many": lambda: made})
    assert figures_of("many") == {"first: vtc": {"avg": 1.0}, "second: vtc": {"avg": 2.0}}


def test_differences_name_row_and_column():
    committed = {"vtc": {"tok/s": 900.0, "avg": 10.0}, "gone": {"avg": 1.0}}
    assert differences(committed, committed) == []
    assert differences({**committed, "vtc": {"tok/s": 900.001, "avg": 10.00005}}, committed) == []
    seen = {"vtc": {"tok/s": 900.1, "avg": 10.0}, "new": {"avg": 2.0}}
    assert differences(seen, committed) == [
        "gone, avg: 1.0 committed, nothing now",
        "new, avg: nothing committed, 2.0 now",
        "vtc, tok/s: 900.0 committed, 900.1 now",
    ]
