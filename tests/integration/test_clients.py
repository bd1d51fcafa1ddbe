"""Programs of two SDKs make the interactions that the table of clients shows.

``make test-clients`` runs all programs, each framework in an environment of its own.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from agent_worker import AgentWorker
from served_app import served
from whole_server import WholeServer

CLIENTS = Path(__file__).resolve().parents[1] / "clients"


@pytest.fixture(scope="module")
def runner():
    """The module of ``make test-clients``."""
    spec = importlib.util.spec_from_file_location("clients_run", CLIENTS / "run.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CLIENTS))
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with WholeServer(folder / "data", worker=AgentWorker) as server, served(server.client) as url:
        server.url = url
        yield server


@pytest.mark.parametrize("name", ["openai_chat", "anthropic_messages"])
def test_a_program_makes_the_interactions_of_the_table(name, runner, server):
    found = runner.measure(server, server.url, name, sys.executable)
    kept = json.loads(runner.RESULTS.read_text())[name]
    assert found == {kind: kept[kind] for kind in found}
    assert found["one_line"]["whole_runs"] == runner.RUNS


def test_the_guide_has_the_kept_results(runner):
    results = json.loads(runner.RESULTS.read_text())
    text = runner.GUIDE.read_text()
    assert set(results) == set(runner.PROGRAMS) | set(runner.TOOLS)
    assert runner.program_table(results) in text
    assert runner.tool_table(results) in text
    for name in runner.PROGRAMS:
        for kind in ("unchanged", "one_line"):
            assert results[name][kind]["false_merges"] == 0
