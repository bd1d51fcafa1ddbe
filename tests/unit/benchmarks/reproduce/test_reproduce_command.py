"""Test ``fairserve reproduce`` from the command line: exit codes, messages and documents."""

import json
from dataclasses import asdict, replace

import pytest

from fairserve.benchmarks.evidence.origin import (
    ReportOrigin,
    figures_hash,
    read_figures,
    read_origin,
)
from fairserve.benchmarks.evidence.reports import EVIDENCE
from fairserve.benchmarks.reproduce import main as command
from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    ReportSpread,
)
from fairserve.benchmarks.reproduce.setting import delayed
from fairserve.benchmarks.reproduce.vtc.tables import vtc_tables
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.traces.model import TraceError
from fairserve.platform.server import cli

X = ReportColumn("x", lambda run: run)


def report(name, setting):
    seen = ReportSpread(tuple(float(seed) for seed in range(setting.seeds)))
    checks = [Check("claim", True, "seen")]
    rows = [ReportRow("row", {"x": seen})]
    return Report(name, f"title of {name}", "setting", (X,), rows, checks)


@pytest.fixture
def experiments(monkeypatch):
    """Register one report of one experiment, and two of another."""
    monkeypatch.setattr(
        command,
        "EXPERIMENTS",
        {
            "one": lambda setting: report("one", setting),
            "many": lambda setting: [report("first", setting), report("second", setting)],
        },
    )


def start_error(capsys, *arguments):
    """Return the one line on stderr of a command that fails to start."""
    try:
        code = cli.main(["reproduce", *map(str, arguments)])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("fairserve reproduce: ")
    return line


def test_an_unknown_name_lists_the_known_ones(capsys, tmp_path):
    line = start_error(capsys, "vtc-table9", "--json", tmp_path / "out.json")
    assert "vtc-table9" in line
    for name in command.EXPERIMENTS:
        assert name in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("vtc-table2", "vtc_real_trace.csv.gz"),
        ("vtc-figures", "vtc_real_trace.csv.gz"),
        ("all", "claude_code_sessions_A.jsonl.gz"),
    ],
)
def test_missing_traces_explain_how_to_set_their_folder(capsys, tmp_path, monkeypatch, name, trace):
    monkeypatch.delenv("FAIRSERVE_TRACES", raising=False)
    files = ["--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md"]
    plots = ["--plot", tmp_path / "plots"]
    line = start_error(capsys, name, *files, *plots)
    assert f"{trace} is needed" in line
    assert "--traces" in line
    assert "FAIRSERVE_TRACES" in line
    line = start_error(capsys, name, "--traces", tmp_path, *plots)
    assert f"not in {tmp_path}" in line
    monkeypatch.setenv("FAIRSERVE_TRACES", str(tmp_path / "nowhere"))
    assert "nowhere" in start_error(capsys, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["--seeds", 0], ["--seeds", "many"], ["--jobs", 0], ["--json", "no/such/out.json"]],
)
def test_an_invalid_option_is_rejected(capsys, experiments, arguments):
    assert arguments[0] in start_error(capsys, "one", *arguments)


def test_options_are_passed_to_the_experiment(capsys, monkeypatch, tmp_path):
    seen = []

    def keep(setting):
        seen.append(setting)
        return report("one", setting)

    monkeypatch.setattr(command, "EXPERIMENTS", {"one": keep})
    options = ["--seeds", "3", "--jobs", "2", "--traces", str(tmp_path)]
    assert cli.main(["reproduce", "one", *options]) == 0
    assert cli.main(["reproduce", "one"]) == 0
    given, usual = seen
    assert (given.seeds, given.processes, given.traces) == (3, 2, tmp_path)
    assert (usual.seeds, usual.processes) == (5, 1)
    assert "1 (0-2)" in capsys.readouterr().out


def test_all_reports_of_all_experiments_are_written(capsys, experiments, tmp_path):
    out, document = tmp_path / "out.json", tmp_path / "out.md"
    assert cli.main(["reproduce", "all", "--json", str(out), "--markdown", str(document)]) == 0
    names = ["one", "first", "second"]
    assert [each["name"] for each in json.loads(out.read_text())["reports"]] == names
    titles = [line for line in document.read_text().splitlines() if line.startswith("## ")]
    assert titles == [f"## {name}: title of {name}" for name in names]
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if "title of" in line] == [
        f"{name}: title of {name}" for name in names
    ]


def test_nothing_is_written_when_a_later_experiment_cannot_run(
    capsys, experiments, monkeypatch, tmp_path
):
    def fail(setting):
        raise TraceError("line 7 is broken")

    monkeypatch.setattr(command, "EXPERIMENTS", {**command.EXPERIMENTS, "last": fail})
    assert cli.main(["reproduce", "all", "--json", str(tmp_path / "out.json")]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "fairserve reproduce: line 7 is broken"
    assert not list(tmp_path.iterdir())


def test_the_same_command_writes_the_same_bytes_on_any_number_of_cores(tmp_path, monkeypatch):
    def short(setting):
        return vtc_tables(replace(setting, scale=0.1), (5,))

    monkeypatch.setattr(command, "EXPERIMENTS", {"vtc-tables": short})
    written = []
    for number, jobs in enumerate(("1", "2")):
        path, document = tmp_path / f"{number}.json", tmp_path / f"{number}.md"
        files = ["--json", str(path), "--markdown", str(document), "--plot", str(tmp_path)]
        options = ["--seeds", "2", "--jobs", jobs, *files]
        assert cli.main(["reproduce", "vtc-tables", *options]) == 0
        written.append((path.read_bytes(), document.read_bytes()))
    assert written[0] == written[1]
    assert json.loads(path.read_text())["origins"] == {"vtc-tables": asdict(read_origin(document))}
    [only] = json.loads(path.read_text())["reports"]
    spreads = [row["measured"]["avg"]["spread"] for row in only["rows"]]
    assert any(least < greatest for least, greatest in spreads), "the seeds differ"


@pytest.mark.parametrize(("name", "seeds"), [("memory", "3"), ("fairserve-paper", "5")])
def test_a_document_has_the_origin_expected_by_status(capsys, monkeypatch, tmp_path, name, seeds):
    """The command uses exactly the seeds and plots of the registry."""
    monkeypatch.setattr(command, "EXPERIMENTS", {name: lambda setting: report(name, setting)})
    evidence, document = EVIDENCE[name], tmp_path / "out.md"
    cases = figures_hash(evidence.short_cases, read_figures())
    options = ["--markdown", str(document), "--plot", str(tmp_path)]
    assert cli.main(["reproduce", name, "--seeds", seeds, *options]) == 0
    expected = ReportOrigin(evidence.command, cases)
    assert read_origin(document) == expected
    assert document.read_text().startswith(f"# {name}\n\n## {name}: title of {name}\n")
    assert cli.main(["reproduce", name, "--seeds", "1", *options]) == 0
    assert read_origin(document) != expected
    assert cli.main(["reproduce", name, "--seeds", seeds, *options[:2]]) == 0
    assert (read_origin(document) == expected) == (not evidence.draws)


def test_the_first_seed_of_a_recorded_trace_is_the_exact_model():
    costs = COST_MODELS["a10g-llama2-7b"]
    assert delayed(costs, 0) == costs
    steps = [delayed(costs, seed).decode_base_s / costs.decode_base_s for seed in range(5)]
    assert steps == pytest.approx([1.0, 1.01, 0.99, 1.02, 0.98])
