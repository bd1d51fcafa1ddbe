"""Test ``fairserve reproduce status`` and ``short-cases`` on a folder of small reports."""

import json
from dataclasses import replace

import pytest

from fairserve.benchmarks.evidence import command, origin, short_cases
from fairserve.benchmarks.evidence.origin import (
    ReportOrigin,
    figures_hash,
    present_origin,
    read_figures,
    read_origin,
    write_figures,
)
from fairserve.benchmarks.evidence.reports import Evidence
from fairserve.benchmarks.reproduce.report import Report, ReportColumn, ReportRow, ReportSpread
from fairserve.platform.server import cli

REPORTS = {
    each.name: each
    for each in (
        Evidence("table", "fairserve x --seeds 5", "table.md", takes="2 min",
                 short_cases=("quick", "other"), output="--markdown table.md"),
        Evidence("speed", "fairserve y", "speed.json"),
        Evidence("gpu", "fairserve z", "gpu.json", needs="a GPU"),
    )
}  # fmt: skip
FIGURES = {"quick": {"vtc": {"avg": 1.5}}, "other": {"vtc": {"avg": 2.0}}}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a folder with two reports; the third was never made."""
    monkeypatch.setattr(command, "EVIDENCE", REPORTS)
    monkeypatch.setattr(origin, "EVIDENCE", REPORTS)
    write_figures(FIGURES, tmp_path / "short_cases.json")
    folder = tmp_path / "results"
    folder.mkdir()
    made = present_origin("table", REPORTS["table"].command, FIGURES)
    (folder / "table.md").write_text(f"# table\n\n{made.line()}")
    (folder / "speed.json").write_text(json.dumps({"machine": {"revision": "abc123+"}}))
    return folder


def run(capsys, results, name, *arguments):
    code = cli.main(["reproduce", name, "--results", str(results), *arguments])
    return code, *capsys.readouterr()


def seen_states(capsys, results):
    code, out, _ = run(capsys, results, "status", "--json")
    reports = json.loads(out)["reports"]
    return code, {each["name"]: each["state"] for each in reports}


def test_fresh_and_measured_reports_and_those_of_other_hardware_are_accepted(capsys, results):
    states = {"table": "fresh", "speed": "measured", "gpu": "missing"}
    assert seen_states(capsys, results) == (0, states)
    code, out, _ = run(capsys, results, "status")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "table fresh 2 min fairserve x --seeds 5 --markdown table.md" in lines
    assert "speed measured at abc123+ unknown fairserve y" in lines
    assert "gpu needs a GPU" in lines
    assert "Not as new" not in out


def test_a_report_is_stale_once_a_figure_of_its_cases_changed(capsys, results):
    write_figures({**FIGURES, "other": {"vtc": {"avg": 2.1}}}, results.parent / "short_cases.json")
    assert seen_states(capsys, results)[0] == 1
    code, out, _ = run(capsys, results, "status")
    assert code == 1
    assert "Not as new as the code: table. Run the command again." in out


def test_a_report_of_another_command_or_without_an_origin_is_stale(capsys, results):
    """A report of one seed instead of five has another command."""
    made = read_origin(results / "table.md")
    assert made == ReportOrigin(
        "fairserve x --seeds 5", figures_hash(REPORTS["table"].short_cases, FIGURES)
    )
    short = replace(made, command="fairserve x --seeds 1")
    for text in (f"# table\n\n{short.line()}", "# table\n"):
        (results / "table.md").write_text(text)
        code, states = seen_states(capsys, results)
        assert (code, states["table"]) == (1, "stale")


def test_a_missing_document_fails_unless_it_needs_other_hardware(capsys, results):
    (results / "speed.json").unlink()
    assert seen_states(capsys, results) == (
        1,
        {"table": "fresh", "speed": "missing", "gpu": "missing"},
    )


def test_a_missing_folder_is_wrong_usage(capsys, results):
    assert cli.main(["reproduce", "status", "--results", str(results / "no")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_an_installed_package_names_the_location_of_reports(capsys, results, monkeypatch):
    monkeypatch.setattr(command, "RESULTS", results / "no")
    assert cli.main(["reproduce", "status"]) == 2
    assert "reports are in a checkout, not in the installed package" in capsys.readouterr().err


def test_new_figures_of_a_short_case_are_committed_and_make_its_reports_stale(
    capsys, results, monkeypatch
):
    columns = [ReportColumn("avg", float)]
    made = Report("quick", "", "", columns, [ReportRow("vtc", {"avg": ReportSpread((9.0,))})], [])
    monkeypatch.setattr(short_cases, "SHORT_CASES", {"quick": lambda: made})
    code, out, _ = run(capsys, results, "short-cases", "quick")
    assert code == 0
    assert "quick: 1 of its figures changed\nvtc, avg: 1.5 committed, 9.0 now" in out
    assert read_figures(results.parent / "short_cases.json")["quick"] == {"vtc": {"avg": 9.0}}
    assert seen_states(capsys, results)[1]["table"] == "stale"
    assert run(capsys, results, "short-cases", "slow")[0] == 2
