"""In the registry of reports every file has one report, and every report its files."""

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from fairserve.benchmarks.bench.engine import command as engine_bench
from fairserve.benchmarks.bench.engine.options import EngineBenchOptions
from fairserve.benchmarks.bench.figures_command import FiguresOptions
from fairserve.benchmarks.bench.scheduling import command as scheduling_bench
from fairserve.benchmarks.evidence.origin import CHECKOUT, RESULTS
from fairserve.benchmarks.evidence.reports import EVIDENCE, command_line, reproduce_command
from fairserve.benchmarks.reproduce.main import EXPERIMENTS

DOCUMENTED = [name for name, each in EVIDENCE.items() if (RESULTS / each.document).exists()]


INDEX = "README.md"
"""File of the results folder that belongs to no report: it links to them."""


def owns(report, file):
    """Return whether a file of the results folder belongs to a report."""
    return file == report.document or any(fnmatchcase(file, each) for each in report.files)


def test_every_file_of_the_results_belongs_to_one_report():
    files = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()}
    owners = {
        file: [each.name for each in EVIDENCE.values() if owns(each, file)]
        for file in files - {INDEX}
    }
    assert {file: names for file, names in owners.items() if len(names) != 1} == {}


def test_every_experiment_has_a_report_with_short_cases():
    assert {name for name, each in EVIDENCE.items() if each.short_cases} == EXPERIMENTS.keys()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_pictures_of_a_document_exist_and_belong_to_it(name):
    report = EVIDENCE[name]
    document = RESULTS / report.document
    if document.suffix != ".md":
        return
    shown = {line.partition("](")[2].rstrip(")") for line in document.read_text().splitlines()
             if line.startswith("![")}  # fmt: skip
    assert bool(shown) == report.draws
    paths = [(document.parent / each).relative_to(RESULTS).as_posix() for each in shown]
    assert all(owns(report, path) and (RESULTS / path).exists() for path in paths)


def test_commands_equal_those_in_documents(tmp_path):
    """The registry and the commands must be spelled alike, or no report would ever be fresh."""
    assert EVIDENCE["vtc-table2"].command == reproduce_command("vtc-table2", 25, plot=False)
    options = FiguresOptions(rounds=9)
    assert scheduling_bench.command(options) == EVIDENCE["scheduling"].command
    engine = EngineBenchOptions(fit=tmp_path / "costs.json")
    assert engine_bench.command_of(engine) == EVIDENCE["engine"].command
    gpu = replace(engine, device="cuda", dtype="bfloat16", shape="8b", limit_s=120)
    assert engine_bench.command_of(gpu) == EVIDENCE["gpu-8b"].command
    script = (CHECKOUT / "benchmarks/gpu.sh").read_text()
    assert "--device cuda --dtype bfloat16 --shape" in script
    assert '--limit-s "${LIMIT_S:-120}"' in script


def test_flags_of_a_command_are_derived():
    settings = {"seeds": 5, "plot": True, "only": None, "fit": False}
    assert command_line("x", settings) == "x --seeds 5 --plot"
