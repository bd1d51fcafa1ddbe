"""Test reports of reproductions: spreads, orders with ties, distances from the paper, texts."""

import pytest

from fairserve.benchmarks.reproduce.claims import (
    Statement,
    at_least,
    at_most,
    between,
    less,
    less_by_median,
)
from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    measure,
    same_order,
    spread,
    within,
)

X = ReportColumn("x", lambda run: run["x"], 1)
Y = ReportColumn("y", lambda run: run["y"])


def row(name, seen, published=None, column="x"):
    return ReportRow(name, {column: spread(seen)}, {} if published is None else {column: published})


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0, 1.0, 2.0], (2.0, 1.0, 3.0)), ([4.0, 1.0], (2.5, 1.0, 4.0)), ([7.0], (7.0, 7.0, 7.0))],
)
def test_spread_is_median_minimum_maximum(values, expected):
    assert spread(values) == expected


def test_measure_reads_every_column_of_every_run():
    measured = measure((X, Y), [{"x": 1, "y": 10}, {"x": 3, "y": 30}, {"x": 2, "y": 20}])
    assert measured == {"x": (2, 1, 3), "y": (20, 10, 30)}


@pytest.mark.parametrize(
    ("seen", "holds"), [(102.9, True), (97.1, True), (103.1, False), (96.9, False)]
)
def test_within_is_relative_to_the_published_value(seen, holds):
    check = within("near", row("a", [seen], 100.0), "x", 0.03)
    assert check.holds is holds
    assert check.seen == f"{seen:,.1f}, published 100.0: {seen - 100:+.1f}%"


def test_within_checks_only_the_median():
    assert within("near", row("a", [100.0, 500.0, 101.0], 100.0), "x", 0.03).holds


def test_same_order_passes_and_shows_the_order():
    rows = [row("b", [20.0], 200.0), row("a", [10.0], 100.0), row("c", [30.0], 300.0)]
    assert same_order("order", rows, "x") == Check("order", True, "a < b < c")


def test_same_order_names_each_wrong_pair():
    rows = [row("a", [25.0], 100.0), row("b", [20.0], 200.0), row("c", [10.0], 300.0)]
    check = same_order("order", rows, "x")
    assert not check.holds
    assert check.seen == "a 25.0 over b 20.0; a 25.0 over c 10.0; b 20.0 over c 10.0"


@pytest.mark.parametrize(
    ("published", "low_seen", "holds"),
    [
        (100.0, [19.0, 21.0, 22.0], True),  # near in the paper, and the spreads overlap
        (100.0, [20.6, 21.0, 22.0], False),  # near, but no seed of one is below one of the other
        (94.0, [19.0, 21.0, 22.0], False),  # overlapping, but over 5 % apart in the paper
    ],
)
def test_only_ties_may_be_reordered(published, low_seen, holds):
    rows = [row("low", low_seen, published), row("high", [18.0, 20.0, 20.5], 100.0)]
    assert same_order("order", rows, "x").holds is holds


REPORT = Report(
    "vtc-table0",
    "VTC, nothing",
    "One seed.",
    (X, Y),
    [
        ReportRow("fcfs", {"x": spread([1234.5]), "y": spread([1.0, 2.0, 3.0])}, {"x": 1200.0}),
        ReportRow("ours", {"x": spread([7.0])}),
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


SEEN = row("a", [2.0, 4.0, 3.0])


@pytest.mark.parametrize(
    ("check", "holds", "seen"),
    [
        (at_most("c", SEEN, "x", 4.0), True, "4, allowed at most 4"),
        (at_most("c", SEEN, "x", 3.9, 1), False, "4.0, allowed at most 3.9"),
        (at_least("c", SEEN, "x", 2.0), True, "2, at least 2"),
        (at_least("c", SEEN, "x", 2.1, 1), False, "2.0, at least 2.1"),
        (between("c", SEEN, "x", 2.0, 4.0, 0), True, "2 to 4, allowed 2 to 4"),
        (between("c", SEEN, "x", 2.1, 4.0, 1), False, "2.0 to 4.0, allowed 2.1 to 4.0"),
        (between("c", SEEN, "x", 2.0, 3.9, 1), False, "2.0 to 4.0, allowed 2.0 to 3.9"),
        (less("c", SEEN, row("b", [9.0, 5.0]), "x"), True, "4 against 5 under b"),
        (less("c", SEEN, row("b", [9.0, 4.0]), "x"), False, "4 against 4 under b"),
        (
            less_by_median("c", SEEN, row("b", [1.0, 9.0, 4.0]), "x"),
            True,
            "3 against 4 under b, medians",
        ),
        (less_by_median("c", SEEN, row("b", [3.0]), "x"), False, "3 against 3 under b, medians"),
        (less("c", SEEN, row("b", [9.0, 8.0]), "x", 0.5), False, "4 against 0.5 of 8 under b"),
    ],
)
def test_a_claim_must_hold_for_every_seed(check, holds, seen):
    assert check == Check("a: c", holds, seen)


def test_no_claim_holds_for_nan():
    nothing = row("a", [float("nan")])
    assert not at_most("c", nothing, "x", 4.0).holds
    assert not at_least("c", nothing, "x", 4.0).holds
    assert not between("c", nothing, "x", 0.0, 4.0).holds
    assert not less("c", nothing, row("b", [5.0]), "x").holds
    assert not less("c", row("b", [5.0]), nothing, "x").holds


@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ({"kind": "at most", "bounds": [4]}, "4, allowed at most 4"),
        ({"kind": "at least", "bounds": [0.5], "times": "b", "digits": 1}, "2.0, at least 2.5"),
        ({"kind": "at most", "bounds": [2], "times_greatest": "b"}, "4, allowed at most 18"),
        ({"kind": "less", "bounds": [0.5], "than": "b"}, "4 against 0.5 of 4 under b"),
        ({"kind": "ratio between", "bounds": [0.1, 1], "than": "b"}, "0.60 of it"),
    ],
)
def test_a_statement_compares_as_its_kind_does(statement, seen):
    rows = {"a": row("a", [2.0, 3.0, 4.0]), "b": row("b", [4.0, 5.0, 9.0])}
    check = Statement(claim="c", row="a", column="x", **statement).check(rows)
    assert check.seen == seen
    assert check.holds == (seen in ("4, allowed at most 4", "4, allowed at most 18", "0.60 of it"))
