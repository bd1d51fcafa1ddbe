"""Each program in examples/ runs against a server as one run of its agents, stage by stage."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from torch_worker import torch_server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
}
"""Environment that sends all traffic to the server only."""
DEADLINE_S = 240

# Agent and stage, with the expected number of calls.
GRAPHS = {
    "declared_program.py": {
        ("planner", 1): 1,
        ("writer", 2): 3,
        ("editor", 3): 1,
    },
    "openai_client.py": {
        ("planner", 1): 1,
        ("researcher", 2): 3,
        ("reviewer", 3): 1,
        ("researcher", 4): 1,
        ("editor", 5): 1,
    },
    "langgraph_agents.py": {
        ("planner", 1): 1,
        ("researcher", 2): 3,
        ("reviewer", 3): 1,
        ("researcher", 4): 3,
        ("reviewer", 5): 1,
    },
    "openai_agents_sdk.py": {
        ("planner", 1): 1,
        ("researcher", 2): 3,
        ("reviewer", 3): 1,
    },
}
# The second review gets the findings of both earlier rounds.
BEYOND = {"langgraph_agents.py": {(("researcher", 2), ("reviewer", 5)): 3}}
NEEDED = {
    "declared_program.py": ["httpx"],
    "openai_client.py": ["openai"],
    "langgraph_agents.py": ["langgraph", "langchain_openai"],
    "openai_agents_sdk.py": ["agents"],
}


GUIDE = EXAMPLES.parent / "docs/guide/agents.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with torch_server(tmp_path_factory.mktemp("server") / "data", "demo") as server:
        yield server


def run_example(name, server, key):
    """Run a program of examples/ and return its output."""
    environment = {
        **os.environ,
        **QUIET,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": key,
    }
    run = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert run.returncode == 0, f"{run.stderr[-4000:]}\n{server.log()}"
    assert key not in run.stdout + run.stderr
    return run.stdout


def graph_of(server, run_id, key):
    """Return calls by agent and stage, and edges between agents, as the server shows the run."""
    found = server.call(key, "GET", f"/v1/interactions/{run_id}/graph")
    assert {node["state"] for node in found["nodes"]} == {"completed"}
    agents = {node["id"]: (node["agent"], node["stage"]) for node in found["nodes"]}
    edges = Counter((agents[parent], agents[child]) for parent, child in found["edges"])
    return Counter(agents.values()), edges


def edges_between(stages):
    """Return the edges for stages in which each call follows all calls of the previous stage."""
    by_stage = {}
    for (agent, stage), calls in stages.items():
        by_stage.setdefault(stage, []).append(((agent, stage), calls))
    return {
        (parent, child): before * after
        for stage, children in by_stage.items()
        for parent, before in by_stage.get(stage - 1, ())
        for child, after in children
    }


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(GRAPHS) == set(NEEDED)


@pytest.mark.parametrize("name", GRAPHS)
def test_an_example_is_one_run_of_its_agents(name, server):
    for package in NEEDED[name]:
        if importlib.util.find_spec(package) is None:
            reason = f"{package} is not installed (extra `agents`)"
            pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    key = server.new_app(name=name)["api_key"]
    wanted = GRAPHS[name]
    calls = sum(wanted.values())
    *before, last = run_example(name, server, key).splitlines()
    assert bool(before) == (name == "declared_program.py")
    printed = re.fullmatch(r"run (\S+): (\w+), (\d+) calls", last)
    assert printed is not None
    run_id, state, reported = printed.groups()
    assert (state, int(reported)) == ("complete", calls)
    nodes, edges = graph_of(server, run_id, key)
    assert nodes == wanted
    assert edges == {**edges_between(wanted), **BEYOND.get(name, {})}
    (run,) = server.call(key, "GET", "/v1/interactions")["items"]
    assert (run["id"], run["user"], run["calls"]) == (run_id, "ann", calls)


def test_curl_calls_of_the_guide_are_one_run(server):
    key = server.new_app(name="curl")["api_key"]
    (script,) = re.findall(r"```sh\n(curl .*?)```", GUIDE.read_text(), re.DOTALL)
    script = script.replace("$OPENAI_BASE_URL", f"{server.url}/v1").replace("$OPENAI_API_KEY", key)
    for command in script.split("curl ")[1:]:
        url, *flags = shlex.split(command)
        headers = [value.split(": ") for flag, value in pairwise(flags) if flag == "-H"]
        (body,) = (value for flag, value in pairwise(flags) if flag == "-d")
        answer = httpx.post(url, content=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
    run = server.call(key, "GET", "/v1/interactions/report-42")
    assert (run["state"], run["user"], run["calls"]) == ("complete", "ann", 2)
    nodes, edges = graph_of(server, "report-42", key)
    assert nodes == {("planner", 1): 1, ("writer", 2): 1}
    assert edges == {(("planner", 1), ("writer", 2)): 1}
