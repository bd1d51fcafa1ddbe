"""Each kind of statement holds and fails as it says, and the files of studies use them rightly."""

import math

import pytest

from fairserve.benchmarks.reproduce.default.headline import STUDY as DEFAULT
from fairserve.benchmarks.reproduce.dlpm import figures as dlpm
from fairserve.benchmarks.reproduce.fairserve.workload import STUDY as FAIRSERVE
from fairserve.benchmarks.reproduce.profiles import levers
from fairserve.benchmarks.reproduce.report import ReportRow, ReportSpread
from fairserve.benchmarks.reproduce.statements import KINDS, Statement
from fairserve.benchmarks.reproduce.study import at, columns_of, statements_of
from fairserve.benchmarks.reproduce.vtc.tables import STUDY as VTC


def rows(published=(), **figures):
    """Return rows of a column x; a figure is its seeds, or a pair of those of x and of y."""
    known = dict(published)
    return {
        name: ReportRow(
            name,
            {column: ReportSpread(tuple(map(float, seeds))) for column, seeds in each.items()},
            {"x": known[name]} if name in known else {},
        )
        for name, each in figures.items()
    }


def x(*seeds):
    return {"x": seeds}


def xy(xs, ys):
    return {"x": xs, "y": ys}


A = rows(a=x(2, 4, 3))
PAIR = rows(a=x(2, 4, 3), b=x(9, 5, 6))
BEATEN = rows(ours=xy([5, 6], [10, 11]), other=xy([4, 3], [12, 13]))
FRONT = rows(low=xy([1], [9]), high=xy([2], [8]), best=xy([3], [10]))
LINE = rows(one=x(1), two=x(3), three=x(2), four=x(4))
CELLS = {
    name: ReportRow(name, {"x": ReportSpread((value,)), "y": ReportSpread((1.0,))})
    for name, value in {"c1 a": 4.0, "c1 b": 2.0, "c2 a": 1.0, "c2 b": 4.0}.items()
}


@pytest.mark.parametrize(
    ("kind", "given", "fields", "holds", "seen"),
    [
        ("at most", A, {"bounds": [4]}, True, "4, allowed at most 4"),
        ("at most", A, {"bounds": [3.9], "digits": 1}, False, "4.0, allowed at most 3.9"),
        ("at most", PAIR, {"bounds": [0.5], "times_greatest": "b"}, True, "4, allowed at most 4"),
        ("by median at most", A, {"bounds": [3]}, True, "3.0, allowed at most 3, median"),
        ("by median at most", A, {"bounds": [2.9]}, False, "3.0, allowed at most 3, median"),
        ("at least", A, {"bounds": [2]}, True, "2, at least 2"),
        ("at least", PAIR, {"bounds": [0.5], "times": "b"}, False, "2, at least 3"),
        ("at least", PAIR, {"bounds": [-4], "plus": "b"}, True, "2, at least 2"),
        ("between", A, {"bounds": [2, 4], "digits": 0}, True, "2 to 4, allowed 2 to 4"),
        ("between", A, {"bounds": [2, 3.9]}, False, "2.00 to 4.00, allowed 2.00 to 3.90"),
        ("less", PAIR, {"than": "b"}, True, "4 against 5 under b"),
        ("less", PAIR, {"than": "b", "bounds": [0.5]}, False, "4 against 0.5 of 5 under b"),
        ("less by median", PAIR, {"than": "b"}, True, "3 against 6 under b, medians"),
        ("less by median", PAIR, {"row": "b", "than": "a"}, False, "6 against 3 under a, medians"),
        ("less by seed", PAIR, {"than": "b"}, True, "a 3, b 6, 2.00 times as much"),
        ("more by seed", PAIR, {"row": "b", "than": "a"}, True, "a 3, b 6, 2.00 times as much"),
        (
            "more by seed",
            PAIR,
            {"row": "b", "than": "a", "bounds": [1.5]},
            False,
            "a 3, b 6, 2.00 times as much (in 2 of 3 seeds)",
        ),
        ("less by seed", rows(a=x(0, 0), b=x(1, 1)), {"than": "b"}, True, "a 0, b 1"),
        ("ratio between", PAIR, {"than": "b", "bounds": [0.1, 1]}, True, "0.50 of it"),
        ("ratio between", PAIR, {"than": "b", "bounds": [0.6, 1]}, False, "0.50 of it"),
        (
            "within",
            rows({"a": 100.0}, a=x(102, 500, 101)),
            {"bounds": [0.03]},
            True,
            "102.0, published 100.0: +2.0%",
        ),
        (
            "within",
            rows({"a": 100.0}, a=x(96.9)),
            {"bounds": [0.03]},
            False,
            "96.9, published 100.0: -3.1%",
        ),
    ],
)
def test_a_statement_about_one_row(kind, given, fields, holds, seen):
    statement = Statement(
        **{"kind": kind, "claim": "{row}: c", "row": "a", "column": "x", **fields}
    )
    check = statement.check(given)
    assert (check.claim, check.holds, check.seen) == (f"{statement.row}: c", holds, seen)


@pytest.mark.parametrize(
    ("given", "fields", "holds", "seen"),
    [
        (BEATEN, {"row": "ours", "lower": ["x"], "higher": ["y"]}, False, "ours by other"),
        (BEATEN, {"row": "other", "lower": ["x"], "higher": ["y"]}, True, "none is"),
        (BEATEN, {"row": "ours", "lower": ["x"], "higher": ["y"], "but": ["o*r"]}, True, "none is"),
        (BEATEN, {"row": "ours", "higher": ["y"], "bounds": [0.2]}, True, "none is"),
        (FRONT, {"rows": ["low", "high"], "by": ["best"], "higher": ["x", "y"]}, False, None),
        (FRONT, {"rows": ["best", "low"], "by": ["high"], "higher": ["x", "y"]}, True, None),
    ],
)
def test_a_row_is_beaten_in_all_columns_at_once_and_beyond_the_spread(given, fields, holds, seen):
    check = Statement(kind="not beaten", claim="c", **fields).check(given)
    assert check.holds is holds
    assert seen in (None, check.seen)


@pytest.mark.parametrize(
    ("kind", "given", "fields", "holds", "seen"),
    [
        ("rises", LINE, {}, True, "1 to 4, 83% of pairs in order"),
        ("falls", LINE, {}, False, "1 to 4, 17% of pairs in order"),
        ("rises", LINE, {"but": ["four"], "rows": ["t*"]}, False, "3 to 2, 0% of pairs in order"),
        ("all between", LINE, {"bounds": [-math.inf, 4]}, True, "4.00: four"),
        ("all between", LINE, {"bounds": [2, 4]}, False, "1.00: one; 4.00: four"),
        ("any beyond", LINE, {"bounds": [0, 4]}, True, "1.00: one; 4.00: four"),
        ("any beyond", LINE, {"bounds": [0, 5], "but": ["four"]}, False, None),
        ("medians above", LINE, {"bounds": [0.9]}, True, "1.00 to 4.00, geometric mean 2.21"),
        ("medians above", LINE, {"bounds": [1]}, False, None),
        (
            "greatest ratio",
            CELLS,
            {"row": "a", "than": "b", "bounds": [2]},
            True,
            "2.00 times in c1",
        ),
        ("greatest ratio", CELLS, {"row": "a", "than": "b", "bounds": [2.1]}, False, None),
        (
            "least ratio",
            CELLS,
            {"row": "a", "than": "b", "bounds": [0.25]},
            True,
            "0.25 times in c2",
        ),
        ("least ratio", CELLS, {"row": "a", "than": "b", "bounds": [0.3]}, False, None),
        ("mean ratio", CELLS, {"row": "b", "than": "a", "bounds": [1]}, True, None),
        ("mean ratio", CELLS, {"row": "a", "than": "b", "bounds": [1]}, False, None),
        ("nowhere beats", CELLS, {"row": "a", "than": "b", "higher": ["x"]}, False, "c1"),
        (
            "nowhere beats",
            CELLS,
            {"row": "a", "than": "b", "higher": ["x", "y"]},
            True,
            "in no cell",
        ),
    ],
)
def test_a_statement_about_several_rows(kind, given, fields, holds, seen):
    check = Statement(**{"kind": kind, "claim": "c", "column": "x", **fields}).check(given)
    assert check.holds is holds
    assert seen in (None, check.seen)


@pytest.mark.parametrize(
    ("published", "low", "holds", "seen"),
    [
        (50.0, [1, 2], True, "low < high"),
        (50.0, [21, 22], False, "low 21.5 over high 20.0"),
        (96.0, [19, 21, 22], True, None),  # near in the paper, and the spreads overlap
        (100.0, [20.6, 21, 22], False, None),  # near, but no seed of one is below one of the other
        (94.0, [19, 21, 22], False, None),  # overlapping, but over 5 % apart in the paper
    ],
)
def test_only_ties_may_be_reordered(published, low, holds, seen):
    given = rows({"low": published, "high": 100.0}, low=x(*low), high=x(18, 20, 20.5), ours=x(0))
    check = Statement(kind="published order", claim="c", column="x").check(given)
    assert check.holds is holds
    assert seen in (None, check.seen)


def test_the_best_row_is_found():
    statement = Statement(kind="at least", claim="{row}", column="x", best_of=["t*"], bounds=[2.5])
    check = statement.check(LINE)
    assert (check.claim, check.holds) == ("two", True)


def test_a_statement_about_a_missing_row_is_left_out_and_one_about_a_missing_figure_fails():
    for given in ({"row": "none"}, {"row": "a", "than": "none"}, {"row": "a", "times": "none"}):
        assert Statement(kind="less", claim="c", column="x", **given).check(A) is None
    assert Statement(kind="all between", claim="c", column="x", rows=["z*"]).check(A) is None
    assert Statement(kind="least ratio", claim="c", column="x", row="a", than="b").check(A) is None
    check = Statement(kind="at most", claim="c", row="a", column="y", bounds=[1]).check(A)
    assert (check.holds, check.seen) == (False, "none")
    check = Statement(kind="not beaten", claim="c", row="a", higher=["x", "y"]).check(A)
    assert (check.holds, check.seen) == (False, "none")


def test_no_statement_holds_for_nan():
    given = rows(a=x(math.nan), b=x(5))
    for kind, fields in {
        "at most": {"bounds": [4]},
        "at least": {"bounds": [4]},
        "between": {"bounds": [0, 4]},
        "less": {"than": "b"},
        "more by seed": {"than": "b"},
    }.items():
        assert not Statement(kind=kind, claim="c", row="a", column="x", **fields).check(given).holds


STUDIES = {
    "vtc": VTC,
    "dlpm": dlpm._STUDY,
    "fairserve": FAIRSERVE,
    "default": DEFAULT,
    "profiles": levers._STUDY,
}


@pytest.mark.parametrize("study", STUDIES)
def test_statements_are_about_columns_of_their_table(study):
    columns = columns_of(STUDIES[study].get("columns", {}))
    for kind in ("table", "report", "figure", "recorded"):
        for entry in STUDIES[study].get(kind, ()):
            common = STUDIES[study].get(f"of_{kind}s", {})
            keys = [*(entry.get("columns") or common["columns"]), *entry.get("judged", ())]
            known = {columns[key].name if key in columns else key for key in keys}
            for each in statements_of(entry.get("statements", ())):
                assert each.kind in KINDS
                assert {each.column, *each.lower, *each.higher} - {""} <= known, each
                assert "{" not in each.claim.format(row="", than="")


def test_statements_are_about_rows_of_their_table():
    for kind in ("table", "figure", "recorded"):
        for entry in VTC[kind]:
            runs = [run["name"] for run in entry.get("runs", ())]
            known = {*entry.get("systems", ()), *entry.get("published", ()), *runs, "fairserve"}
            assert entry["statements"]
            for each in statements_of(entry["statements"]):
                named = {each.row, each.than, each.times, each.times_greatest} - {""}
                assert named <= known
                assert each.row or each.kind == "published order"


def test_a_figure_is_at_a_path_of_the_summary():
    summary = {"ttft_s": {"mean": 2.0, "p99": None}, "wasted": {"a": 1, "b": 2}}
    assert at("ttft_s.mean")(summary) == 2.0
    assert at("ttft_s.mean", 100.0)(summary) == 200.0
    assert at("wasted")(summary) == 3.0
    assert math.isnan(at("ttft_s.p99")(summary))
    assert math.isnan(at("none.of.it")(summary))
