"""Test ``fairserve reproduce status``, ``stamp`` and ``short-cases`` on a folder of small reports."""

import json

import pytest

from fairserve.benchmarks.evidence import command, short_cases
from fairserve.benchmarks.evidence.committed import figures_hash, read_figures, write_figures
from fairserve.benchmarks.evidence.fingerprint import Fingerprints
from fairserve.benchmarks.evidence.marks import Mark, StillHolds, read_mark, write_mark
from fairserve.benchmarks.evidence.reports import Evidence
from fairserve.benchmarks.reproduce.report import Report, ReportColumn, ReportRow, spread
from fairserve.platform.server import cli

MODULES = ("fairserve.benchmarks.text_table",)
REPORTS = {
    each.name: each
    for each in (
        Evidence("table", "fairserve x --seeds 5", "table.md", MODULES, takes="2 min",
                 short_cases=("quick", "other"), output="--markdown table.md"),
        Evidence("speed", "fairserve y", "speed.json", MODULES),
        Evidence("gpu", "fairserve z", "gpu.json", MODULES, needs="a GPU"),
    )
}  # fmt: skip
FIGURES = {"quick": {"vtc": {"avg": 1.5}}, "other": {"vtc": {"avg": 2.0}}}
OLD = "000000000000"


@pytest.fixture
def now():
    fingerprints = Fingerprints()
    return {name: fingerprints.of(each) for name, each in REPORTS.items()}


@pytest.fixture
def ran(monkeypatch):
    """Return the figures that the short cases give, and the names of those that were run."""
    figures, names = {name: dict(rows["vtc"]) for name, rows in FIGURES.items()}, []

    def case(name):
        def run():
            names.append(name)
            columns = [ReportColumn(each, float) for each in figures[name]]
            measured = {column: spread([value]) for column, value in figures[name].items()}
            return Report(name, "title", "setting", columns, [ReportRow("vtc", measured)], [])

        return run

    monkeypatch.setattr(short_cases, "SHORT_CASES", {name: case(name) for name in figures})
    return figures, names


@pytest.fixture
def results(tmp_path, monkeypatch, now):
    """Return a folder with two fresh reports; the third was never made."""
    monkeypatch.setattr(command, "EVIDENCE", REPORTS)
    write_figures(FIGURES, tmp_path / "short_cases.json")
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "table.md").write_text("# table\n")
    (folder / "speed.json").write_text('{\n  "figures": []\n}\n')
    cases = figures_hash(REPORTS["table"].short_cases, FIGURES)
    write_mark(folder / "table.md", Mark(now["table"], REPORTS["table"].command, cases))
    write_mark(folder / "speed.json", Mark(now["speed"], REPORTS["speed"].command))
    return folder


def age(path, **more):
    """Turn a report into one of older code."""
    mark = read_mark(path)
    write_mark(path, Mark(OLD, mark.command, mark.short_cases, **more))


def run(capsys, results, name, *arguments):
    code = cli.main(["reproduce", name, "--results", str(results), *arguments])
    return code, *capsys.readouterr()


def seen_states(capsys, results):
    code, out, _ = run(capsys, results, "status", "--json")
    reports = json.loads(out)["reports"]
    return code, {each["name"]: each["state"] for each in reports}


def test_fresh_reports_and_those_of_other_hardware_are_accepted(capsys, results):
    states = {"table": "fresh", "speed": "fresh", "gpu": "other hardware"}
    assert seen_states(capsys, results) == (0, states)
    code, out, _ = run(capsys, results, "status")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "table fresh 2 min fairserve x --seeds 5 --markdown table.md" in lines
    assert "gpu: needs a GPU" in out
    assert "Older than the code" not in out


@pytest.mark.parametrize("name", ["table.md", "speed.json"])
def test_an_old_report_fails(capsys, results, name):
    age(results / name)
    stem = name.partition(".")[0]
    code, states = seen_states(capsys, results)
    assert code == 1
    assert states[stem] == "stale"
    code, out, _ = run(capsys, results, "status")
    assert code == 1
    assert f"Older than the code: {stem}." in out


def test_a_report_without_a_fingerprint_or_without_a_document_fails(capsys, results):
    (results / "table.md").write_text("# table\n")
    (results / "speed.json").unlink()
    states = {"table": "stale", "speed": "missing", "gpu": "other hardware"}
    assert seen_states(capsys, results) == (1, states)


def test_a_report_of_another_command_is_stale(capsys, results):
    """A report of one seed instead of five has another fingerprint."""
    short = "fairserve x --seeds 1"
    code = Fingerprints().of(REPORTS["table"], short)
    write_mark(results / "table.md", Mark(code, short))
    assert seen_states(capsys, results)[1]["table"] == "stale"
    code, _, err = run(capsys, results, "stamp", "table")
    assert code == 1
    assert "was made by `fairserve x --seeds 1`; make it again: fairserve x --seeds 5" in err


def test_a_reason_holds_for_one_fingerprint(capsys, results, now):
    age(results / "table.md", still_holds=StillHolds(now["table"], "only messages changed"))
    code, states = seen_states(capsys, results)
    assert (code, states["table"]) == (0, "holds")
    assert "table: holds: only messages changed" in run(capsys, results, "status")[1]
    age(results / "table.md", still_holds=StillHolds("111111111111", "only messages changed"))
    code, states = seen_states(capsys, results)
    assert (code, states["table"]) == (1, "stale")


def test_a_missing_folder_is_wrong_usage(capsys, results):
    for name in ("status", "stamp"):
        assert cli.main(["reproduce", name, "--results", str(results / "no")]) == 2
        assert "there is no folder" in capsys.readouterr().err


def test_an_installed_package_names_the_location_of_reports(capsys, results, monkeypatch):
    monkeypatch.setattr(command, "RESULTS", results / "no")
    assert cli.main(["reproduce", "status"]) == 2
    assert "reports are in a checkout, not in the installed package" in capsys.readouterr().err


def test_unchanged_figures_are_stamped(capsys, results, ran, now):
    age(results / "table.md", still_holds=StillHolds("111111111111", "before"))
    code, out, err = run(capsys, results, "stamp")
    assert (code, out, err) == (0, "table: stamped\n", "")
    assert ran[1] == ["quick", "other"]
    cases = figures_hash(("quick", "other"), FIGURES)
    assert read_mark(results / "table.md") == Mark(now["table"], REPORTS["table"].command, cases)
    assert seen_states(capsys, results)[0] == 0


def test_a_changed_figure_is_rejected(capsys, results, ran):
    age(results / "table.md")
    before = (results / "table.md").read_text()
    ran[0]["other"]["avg"] = 2.001
    code, out, err = run(capsys, results, "stamp", "table")
    assert (code, out) == (1, "")
    assert "its short case other gives other figures (vtc, avg: 2.0 committed, 2.001 now)" in err
    assert "make it again: fairserve x --seeds 5 --markdown table.md" in err
    assert (results / "table.md").read_text() == before


def test_a_report_older_than_the_committed_figures_is_rejected(capsys, results, ran):
    """Figures committed together with the code agree with it, and prove nothing about the report."""
    age(results / "table.md")
    ran[0]["quick"]["avg"] = 9.0
    code, out, _ = run(capsys, results, "short-cases", "quick")
    assert code == 0
    assert "quick: 1 of its figures changed\nvtc, avg: 1.5 committed, 9.0 now" in out
    assert read_figures(results.parent / "short_cases.json")["quick"] == {"vtc": {"avg": 9.0}}
    code, _, err = run(capsys, results, "stamp", "table")
    assert code == 1
    assert "table was made before the figures of its short cases changed; make it again" in err


def test_a_report_without_a_short_case_needs_a_reason(capsys, results, ran, now):
    age(results / "speed.json")
    code, _, err = run(capsys, results, "stamp")
    assert code == 1
    assert "speed has no short case; make it again: fairserve y" in err
    code, out, _ = run(capsys, results, "stamp", "speed", "--because", "a file was renamed")
    assert (code, out) == (0, "speed: stamped\n")
    mark = read_mark(results / "speed.json")
    assert (mark.code, mark.still_holds) == (OLD, StillHolds(now["speed"], "a file was renamed"))
    assert seen_states(capsys, results)[0] == 0


def test_a_report_that_was_never_marked_is_rejected(capsys, results, ran):
    (results / "table.md").write_text("# table\n")
    code, _, err = run(capsys, results, "stamp", "table")
    assert code == 1
    assert "table has no fingerprint; make it again" in err
    assert ran[1] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown report nothing; known: table, speed, gpu"),
        (["--because", "so"], "--because needs the names"),
        (["table", "--because", " "], "must be one line that is not empty"),
        (["table", "--because", "a\nb"], "must be one line that is not empty"),
    ],
)
def test_wrong_usage_of_stamp_is_rejected(capsys, results, arguments, message):
    assert cli.main(["reproduce", "stamp", "--results", str(results), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_fresh_or_missing_report_is_not_stamped(capsys, results, ran):
    code, out, _ = run(capsys, results, "stamp", "table")
    assert (code, out, ran[1]) == (0, "table: fresh\n", [])
    code, _, err = run(capsys, results, "stamp", "gpu", "--because", "so")
    assert code == 1
    assert "gpu: there is no" in err
