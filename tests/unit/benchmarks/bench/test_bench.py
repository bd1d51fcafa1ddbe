"""Every figure is measured at a tiny size: names, units, document, command line, no durations."""

import gc
import json
import re

import pytest

from fairserve.benchmarks.bench import scheduling
from fairserve.benchmarks.bench.figure import BenchResult, Figure, FigurePart, Reading
from fairserve.benchmarks.bench.figures_command import FiguresOptions
from fairserve.benchmarks.bench.measure import measure, percentile
from fairserve.benchmarks.bench.report import details, number, table
from fairserve.benchmarks.bench.scheduling import PARTS
from fairserve.benchmarks.commands import bench

TINY = 0.004


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "out.json"
    scheduling.command.measure(FiguresOptions(json=path, rounds=2), scale=TINY)
    return json.loads(path.read_text())


def test_the_document_contains_every_figure(document):
    figures = [figure for part in PARTS for figure in part.figures]
    assert len(figures) == len({figure.name for figure in figures}) > 10
    for figure, measured in zip(figures, document["figures"], strict=True):
        assert (measured["name"], measured["unit"]) == (figure.name, figure.unit)
        assert (measured["target"], measured["aim"]) == (figure.target, figure.aim)
        assert measured["peers"] == figure.peers
        least, greatest = measured["spread"]
        assert 0 < least <= measured["value"] <= greatest, figure.name
    assert {"cores", "processor", "python", "versions"} <= set(document["machine"])
    assert document["method"]["rounds"] == 2
    assert document["command"] == "fairserve bench scheduling --rounds 2"
    assert re.fullmatch(r"[0-9a-f]{8,}\+?", document["machine"]["revision"])


def test_only_requested_figures_are_measured_and_printed(capsys):
    only = ["d2lpm_decision_p99_us", "vtc_select_us_27"]
    scheduling.command.measure(FiguresOptions(only=only, rounds=1), scale=TINY)
    out = capsys.readouterr().out
    assert "d2lpm_decision_p99_us" in out
    assert "29" in out
    assert "dispatcher" not in out
    assert re.search(r"^d2lpm_decision_us_8w", out, re.MULTILINE) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command"),
        (["nothing"], "No such command 'nothing'"),
        (["scheduling", "--only", "nothing"], "unknown figure 'nothing'"),
        (["scheduling", "--rounds", "4"], "greater than or equal to 5"),
        (["scheduling", "--json", "/no/such/folder/out.json"], "no folder"),
    ],
)
def test_wrong_usage_is_rejected(arguments, message, capsys):
    assert bench(arguments) == 2
    assert message in capsys.readouterr().err


# --- measuring ----------------------------------------------------------------------------------


class Counted:
    """Returns the given values, and logs when it was called."""

    def __init__(self, log, name, values):
        self.log, self.name, self.values = log, name, list(values)

    def round(self):
        self.log.append((self.name, gc.isenabled()))
        value = self.values.pop(0)
        return Reading({self.name: value}, {"twice_us": 2 * value})


def test_rounds_interleave_without_garbage_collection_and_the_median_counts():
    log = []
    one, two = Figure("one", "us", "", 3), Figure("two", "us", "", 3)
    parts = [
        FigurePart((one,), lambda scale: Counted(log, "one", [99, 5, 99, 1, 99, 9])),
        FigurePart((two,), lambda scale: Counted(log, "two", [99, 2, 99, 2, 99, 8])),
    ]
    results = measure(parts, 3)
    turns = ["one", "two", "two", "one", "one", "two"]
    assert [name for name, _ in log] == [name for name in turns for _ in ("untimed", "timed")]
    assert not any(enabled for _, enabled in log)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert [result.value for result in results] == [5, 2]
    assert results[0].to_plain()["spread"] == [1, 9]
    assert results[1].details == {"twice_us": 4}


def test_percentiles_are_values_that_occurred():
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile(range(1, 101), 0.5) == 50
    assert percentile([7], 0.99) == 7


def test_the_table_marks_missed_targets():
    low = Figure("cost", "us", "", 10, aim=5, peers={"other": 2040})
    high = Figure("rate", "calls/s", "", 10, higher_is_better=True)
    text = table([BenchResult(low, (11.0,), {"part_us": 1.0}), BenchResult(high, (11.0,), {})])
    head, _, cost, rate = text.splitlines()
    assert head.split() == ["figure", "value", "spread", "target", "aim", "peers"]
    assert "11 *" in cost
    assert "<= 10" in cost
    assert "other 2,040" in cost
    assert "*" not in rate
    assert ">= 10" in rate
    assert details([BenchResult(low, (11.0,), {"part_us": 1.0})]) == "cost: part_us 1"


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (12.345, "12.3"), (123.4, "123"), (12345, "12,345")]
)
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text
