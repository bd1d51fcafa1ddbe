"""Test reports of reproductions: spreads, published figures, texts."""

import math

import pytest

from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    ReportSpread,
    rows_of,
)

X = ReportColumn("x", lambda run: run["x"], 1)
Y = ReportColumn("y", lambda run: run["y"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [((3.0, 1.0, 2.0), (2.0, 1.0, 3.0)), ((4.0, 1.0), (2.5, 1.0, 4.0)), ((7.0,), (7.0, 7.0, 7.0))],
)
def test_spread_is_median_minimum_maximum(values, expected):
    spread = ReportSpread(values)
    assert (spread.value, spread.least, spread.greatest) == expected


def test_rows_have_every_column_that_all_of_their_runs_have():
    runs = {"a": [{"x": 1, "y": 10}, {"x": 3, "y": math.nan}], "b": [{"x": 2, "y": 20}]}
    rows = rows_of((X, Y), runs, {"b": {"x": 5.0}})
    assert rows["a"].measured == {"x": ReportSpread((1, 3))}
    assert rows["b"] == ReportRow(
        "b", {"x": ReportSpread((2,)), "y": ReportSpread((20,))}, {"x": 5.0}
    )


REPORT = Report(
    "vtc-table0",
    "VTC, nothing",
    "One seed.",
    (X, Y),
    [
        ReportRow(
            "fcfs",
            {"x": ReportSpread((1234.5,)), "y": ReportSpread((1.0, 2.0, 3.0))},
            {"x": 1200.0},
        ),
        ReportRow("ours", {"x": ReportSpread((7.0,)), "judged only": ReportSpread((1.0,))}),
    ],
    [Check("small", True, "7"), Check("large", False, "1,234.5")],
    ("plot.png",),
    ["Loses here."],
)


def test_text_has_published_and_measured_values():
    lines = REPORT.text().splitlines()
    assert lines[:3] == ["vtc-table0: VTC, nothing", "One seed.", ""]
    assert lines[3].split() == ["x", "published", "y"]
    assert lines[5].split() == ["fcfs", "1,234.5", "1,200.0", "2", "(1-3)"]
    assert lines[6].split() == ["ours", "7.0", "-", "-"]
    assert lines[8:] == ["holds     small: 7", "DOES NOT  large: 1,234.5", "Loses here."]


def test_markdown_has_the_same_content():
    assert REPORT.markdown().splitlines() == [
        "## vtc-table0: VTC, nothing",
        "",
        "One seed.",
        "",
        "| | x | published | y |",
        "|---|---:|---:|---:|",
        "| fcfs | 1,234.5 | 1,200.0 | 2 (1-3) |",
        "| ours | 7.0 |  | - |",
        "",
        "- holds: small (7)",
        "- **does not hold**: large (1,234.5)",
        "- Loses here.",
        "",
        "![VTC, nothing](plot.png)",
    ]


def test_plain_form_is_complete():
    assert REPORT.to_plain() == {
        "name": "vtc-table0",
        "title": "VTC, nothing",
        "setting": "One seed.",
        "rows": [
            {
                "name": "fcfs",
                "published": {"x": 1200.0},
                "measured": {
                    "x": {"value": 1234.5, "spread": [1234.5, 1234.5]},
                    "y": {"value": 2.0, "spread": [1.0, 3.0]},
                },
            },
            {
                "name": "ours",
                "published": {},
                "measured": {"x": {"value": 7.0, "spread": [7.0, 7.0]}},
            },
        ],
        "checks": [
            {"claim": "small", "holds": True, "seen": "7", "contradicted_by": ""},
            {"claim": "large", "holds": False, "seen": "1,234.5", "contradicted_by": ""},
        ],
        "notes": ["Loses here."],
        "plots": ["plot.png"],
    }
