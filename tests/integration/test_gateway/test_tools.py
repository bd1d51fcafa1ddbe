"""The OpenAI Agents SDK with agents as tools names only the run; the graph is recognised."""

import asyncio
import importlib.util
import os

import openai
import pytest
from scripted_worker import ScriptedWorker


@pytest.fixture(scope="module")
def server(start_server):
    worker = ScriptedWorker()
    yield start_server("--worker-urls", worker.url)
    worker.close()


@pytest.fixture(scope="module")
def sdk():
    if importlib.util.find_spec("agents") is None:
        reason = "openai-agents is not installed (extra `agents`)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    import agents

    agents.set_tracing_disabled(True)
    return agents


def run(sdk, server, run_id, ask, tools):
    """Run an agent that uses other agents as tools; return its last answer."""

    async def work():
        headers = {"X-Interaction-Id": run_id}
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1",
            api_key=server.app_key,
            max_retries=0,
            default_headers=headers,
        ) as client:
            model = sdk.OpenAIChatCompletionsModel(model="scripted", openai_client=client)
            helpers = [
                sdk.Agent(name=name, model=model).as_tool(name, f"knows of {name}")
                for name in tools
            ]
            boss = sdk.Agent(name="boss", model=model, tools=helpers)
            return (await sdk.Runner.run(boss, ask)).final_output

    return asyncio.run(work())


def graph(server, run_id):
    path = f"/v1/interactions/{run_id}/graph"
    return server.request("GET", path, server.app_key).json()


def test_a_tool_result_depends_on_the_calls_of_the_tool(sdk, server):
    run(sdk, server, "one-tool", "use tides", ["tides"])
    found = graph(server, "one-tool")
    ids = [node["id"] for node in found["nodes"]]
    assert found["edges"] == [[ids[0], ids[1]], [ids[1], ids[2]]]
    assert [node["stage"] for node in found["nodes"]] == [1, 2, 3]


def test_parallel_tools_are_parallel_in_the_graph(sdk, server):
    run(sdk, server, "two-tools", "use tides winds", ["tides", "winds"])
    found = graph(server, "two-tools")
    boss, first, second, last = (node["id"] for node in found["nodes"])
    assert sorted(map(tuple, found["edges"])) == sorted(
        [(boss, first), (boss, second), (first, last), (second, last)]
    )
    assert [node["stage"] for node in found["nodes"]] == [1, 2, 2, 3]
    assert found["parallelism"] == 2
