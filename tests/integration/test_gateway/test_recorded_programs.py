"""Recorded runs are sent as programs and run by the torch engine."""

import networkx as nx
import pytest
from processes import eventually
from shared_traces import RECORDED_GRAPHS, recorded_graph
from torch_worker import MODEL

MOST_TOKENS = 24
"""Return the shape of an answer, without lengths, which may differ from the recording."""


def declared(interaction):
    return [
        {
            "id": call.call_id,
            "agent": call.agent,
            "messages": [
                {
                    "role": "user",
                    "content": "go on with"
                    + "".join(f" {{{{{dep}.output}}}}" for dep in call.deps),
                }
            ],
            "sampling": {"max_tokens": max(1, min(MOST_TOKENS, call.output_tokens)), "seed": 1},
            "expected_output_tokens": max(1, call.output_tokens),
        }
        for call in interaction.calls
    ]


@pytest.mark.parametrize("name", RECORDED_GRAPHS)
def test_a_recorded_run_keeps_its_order(server, name):
    for number, (interaction, _) in enumerate(recorded_graph(name)):
        run = f"recorded-{name}-{number}"
        body = {"id": run, "model": MODEL, "nodes": declared(interaction)}
        answer = server.post("/v1/interactions", body)
        assert answer.status_code == 201, answer.text

        def ended(path=f"/v1/interactions/{run}"):
            found = server.request("GET", path, server.app_key).json()
            return found if found["ended_at"] else None

        found = eventually(ended, f"{run} has not ended")
        assert (found["state"], found["program"]["state"]) == ("complete", "complete")
        graph = server.request("GET", f"/v1/interactions/{run}/graph", server.app_key).json()
        calls = {call.call_id: call for call in interaction.calls}
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert nodes.keys() == calls.keys()
        reference = nx.DiGraph((dep, call) for call in calls for dep in calls[call].deps)
        reference.add_nodes_from(calls)
        assert nx.utils.edges_equal(reference.edges, graph["edges"], directed=True)
        generations = list(nx.topological_generations(reference))
        stages = {call: stage for stage, calls in enumerate(generations, 1) for call in calls}
        assert {call: node["stage"] for call, node in nodes.items()} == stages
        assert graph["parallelism"] == max(map(len, generations))
        for parent, child in graph["edges"]:
            ended_s = nodes[parent]["begin_s"] + nodes[parent]["duration_s"]
            assert nodes[child]["begin_s"] >= ended_s - 0.002, (parent, child)
        assert all(node["worker"] and node["output_tokens"] for node in nodes.values())
