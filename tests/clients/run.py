"""Run real agent programs and load tools against the server, and write ``docs/guide/clients.md``.

``python tests/clients/run.py HOME [NAME ...]``: each program of ``programs/`` runs with the interpreter
of its environment ``HOME/<environment>`` (``make test-clients`` makes them), four runs at a time, as it
comes and with one line that names the run. The worker behind the server plays the model
(``tests/support/agent_worker.py``). Its record of each call's question, beside the interactions that
the server made of the calls, gives the runs that are one interaction, and the false merges:
interactions with the calls of more than one question. Each load tool runs against a server with the
embedded engine. The figures are kept in ``results.json``; the tables are made of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

sys.path.insert(0, str(HERE))

from agent_worker import AgentWorker  # noqa: E402
from gateway_server import ChildServer  # noqa: E402
from load_tools import TOOLS, run_tool  # noqa: E402
from processes import eventually  # noqa: E402
from served_app import served  # noqa: E402
from whole_server import WholeServer  # noqa: E402

RESULTS = HERE / "results.json"
GUIDE = ROOT / "docs/guide/clients.md"
BEGIN, END = "<!-- Written by `make test-clients`. -->", "<!-- End of what it writes. -->"
RUNS = 4
DEADLINE_S = 300
QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
"""Environment in which the programs send traffic to the server only."""

PROGRAMS = {
    "openai_chat": ("OpenAI SDK, chat", "openai-agents", "openai"),
    "openai_responses": ("OpenAI SDK, Responses", "openai-agents", "openai"),
    "anthropic_messages": ("Anthropic SDK", "anthropic", "anthropic"),
    "langchain_agent": ("LangChain `create_agent`", "langchain", "langchain"),
    "langgraph_graph": ("LangGraph", "langchain", "langgraph"),
    "pydantic_ai_agent": ("pydantic-ai", "pydantic-ai", "pydantic-ai-slim"),
    "llama_index_workflow": ("LlamaIndex workflow", "llama-index", "llama-index-core"),
    "autogen_team": ("AutoGen team", "autogen", "autogen-agentchat"),
    "crewai_crew": ("CrewAI crew", "crewai", "crewai"),
    "openai_agents_sdk": ("OpenAI Agents SDK", "openai-agents", "openai-agents"),
    "openai_agents_handoff": ("OpenAI Agents SDK, chat", "openai-agents", "openai-agents"),
    "dspy_react": ("DSPy ReAct", "dspy", "dspy"),
    "smolagents_agent": ("smolagents", "smolagents", "smolagents"),
}
"""Name in the table, environment, and distribution whose version is shown, by program."""


def measure(server, url, name, python):
    """Return the figures of a program, as it comes and with one line."""
    return {
        kind: _measure(server, url, name, python, one_line=one_line)
        for kind, one_line in (("unchanged", False), ("one_line", True))
    }


def _measure(server, url, name, python, *, one_line):
    _, app = server.new_tenant_and_app(f"{name}{'-line' if one_line else ''}")
    before = len(server.worker.calls)
    environment = {
        **os.environ,
        **QUIET,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": app["api_key"],
        "OPENAI_MODEL": "scripted",
        "CLIENTS_RUNS": str(RUNS),
        "CLIENTS_ONE_LINE": str(int(one_line)),
        "PYTHONPATH": "",
    }
    ended = subprocess.run(
        [python, HERE / "programs" / f"{name}.py"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    question_of = dict(list(server.worker.calls.items())[before:])

    def recorded():
        # A run that has just ended may not be listed yet.
        runs = interactions(server, app["api_key"])
        return runs if sum(map(len, runs)) == len(question_of) else None

    return figures(question_of, eventually(recorded))


def interactions(server, key):
    """Return the ids of the calls of each interaction of an app."""
    found = server.call(key, "GET", "/v1/interactions", limit=100)["items"]
    graphs = (server.call(key, "GET", f"/v1/interactions/{run['id']}/graph") for run in found)
    return [[node["id"] for node in graph["nodes"]] for graph in graphs]


def figures(question_of, runs):
    """Return figures; ``question_of`` has each call's question, ``runs`` each interaction's calls."""
    questions = [{question_of.get(call) for call in run} for run in runs]
    spread = defaultdict(int)
    for found in questions:
        for question in found:
            spread[question] += 1
    return {
        "calls": len(question_of),
        "interactions": len(runs),
        "whole_runs": sum(count == 1 for count in spread.values()),
        "false_merges": sum(len(found) > 1 for found in questions),
    }


def version(python, distribution):
    """Return the version of a distribution in an environment."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def program_table(results):
    """Return the table of agent programs in Markdown."""
    lines = [
        "| program | version | works unchanged | calls a run"
        " | one run as it comes | with one line | the line |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (title, _, _) in PROGRAMS.items():
        found = results.get(name)
        if found is not None:
            plain, line = found["unchanged"], found["one_line"]
            lines.append(
                f"| [{title}](../../tests/clients/programs/{name}.py) | {found['version']} | yes"
                f" | {plain['calls'] / RUNS:g} | {_verdict(plain)} | {_verdict(line)}"
                f" | `{_line_of(name)}` |"
            )
    return "\n".join(lines)


def tool_table(results):
    """Return the table of load tools in Markdown."""
    lines = ["| tool | version | works unchanged | calls, none failed |", "|---|---|---|---|"]
    for name, tool in TOOLS.items():
        if name in results:
            found = results[name]
            lines.append(f"| {tool.title} | {found['version']} | yes | {found['calls']} |")
    return "\n".join(lines)


def _line_of(name):
    """Return the line that names the run, as the program has it."""
    (line,) = (
        line
        for line in (HERE / "programs" / f"{name}.py").read_text().splitlines()
        if "ONE_LINE()" in line
    )
    return line.strip().rstrip(",").replace("ONE_LINE()", '{"X-Interaction-Id": run}')


def _verdict(found):
    if found["whole_runs"] == RUNS:
        return "yes"
    return f"no: {found['interactions'] / RUNS:g} interactions"


def write_guide(results):
    """Replace the tables in the guide."""
    text = GUIDE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    tables = f"{program_table(results)}\n\n{tool_table(results)}"
    GUIDE.write_text(f"{head}{BEGIN}\n\n{tables}\n\n{END}{tail}")


def run_programs(home, names):
    """Yield name and figures of each agent program."""
    with (
        tempfile.TemporaryDirectory() as folder,
        WholeServer(Path(folder) / "data", worker=AgentWorker) as server,
        served(server.client) as url,
    ):
        for name in names:
            _, environment, distribution = PROGRAMS[name]
            python = home / environment / "bin/python"
            found = measure(server, url, name, python)
            yield name, {"version": version(python, distribution), **found}


def run_tools(home, names):
    """Yield name and figures of each load tool."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ChildServer(Path(folder) / "data", workers=1, model="fairserve-tiny-random") as server,
    ):
        for name in names:
            tool = TOOLS[name]
            binaries = home / tool.environment / "bin"
            files = Path(folder) / name
            files.mkdir()
            found = run_tool(
                name, binaries, server.url, server.new_app(name=name)["api_key"], files
            )
            yield name, {"version": version(binaries / "python", tool.distribution), **found}


def main():
    """Run programs and tools, and write results and guide."""
    options = argparse.ArgumentParser()
    options.add_argument("home", type=Path, help="folder of the environments")
    options.add_argument("names", nargs="*", help="programs and tools; default: all")
    options = options.parse_args()
    names = options.names or [*PROGRAMS, *TOOLS]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for run, known in ((run_programs, PROGRAMS), (run_tools, TOOLS)):
        if wanted := [name for name in names if name in known]:
            for name, found in run(options.home.resolve(), wanted):
                results[name] = found
                print(name, found, flush=True)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_guide(results)
    merged = [
        name
        for name in PROGRAMS
        for kind in ("unchanged", "one_line")
        if name in results and results[name][kind]["false_merges"]
    ]
    return f"false merges: {merged}" if merged else 0


if __name__ == "__main__":
    sys.exit(main())
