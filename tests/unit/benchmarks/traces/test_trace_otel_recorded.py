"""Each recorded file of spans becomes the graph of its names and texts."""

import json
from itertools import pairwise

import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.traces.interaction_file import write_trace
from fairserve.platform.server import cli

FAN_OUT = {2: [1], 3: [1], 4: [1], 5: [2, 3, 4], 6: [5]}
CHAIN = {1: [], 2: [1], 3: [2]}

# Dependencies by the number of the span in its file.
GRAPHS = {
    "simple_chain": CHAIN,
    "simple_chain_alt": CHAIN,
    "parallel_requests": {1: [], 2: [1], 3: [1], 4: [2, 3], 5: [4]},
    "fan_in_dependencies": {1: [], 2: [], 3: [], 4: [1, 2, 3]},
    # A coordinator, two helpers that it quotes in its own words, later an analyst and a manager.
    "customer_support_escalation": (
        {1: [], 2: [1], 3: [1], 4: [2, 3], 5: [4], 6: [5], 7: [6], 8: [7], 9: [8]}
    ),
    # Three helpers at a time, called by a coordinator that repeats none of their words.
    "multi_agent_research": (
        {1: []} | FAN_OUT | {7: [6], 8: [6], 9: [6], 10: [7, 8, 9], 11: [10], 12: [11]}
    ),
    "code_review_workflow": (
        {1: []}
        | FAN_OUT
        | {7: [6], 8: [6], 9: [6], 10: [7, 8, 9], 11: [10]}
        | {12: [11], 13: [11], 14: [11], 15: [12, 13, 14]}
    ),
    # Four helpers, then three, then two; some prompts shorten earlier text.
    "software_architecture_review": (
        {1: [], 2: [1], 3: [1], 4: [1], 5: [1], 6: [2, 3, 4, 5], 7: [6], 8: [6], 9: [6]}
        | {10: [7, 8, 9], 11: [10], 12: [11], 13: [11], 14: [12, 13], 15: [14]}
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_session_becomes_its_graph(name):
    path = shared_trace(f"fixtures/otel_{name}.json")
    number = {
        span["span_id"]: index
        for index, span in enumerate(json.loads(path.read_text())["spans"], start=1)
    }
    (interaction,) = read_trace(path).interactions
    graph = {number[call.call_id]: [number[dep] for dep in call.deps] for call in interaction.calls}
    assert graph == GRAPHS[name]
    assert all(0 <= call.gap_s <= 5 for call in interaction.calls if call.deps)


def test_recorded_fan_in_is_found(tmp_path):
    trace = read_trace(shared_trace("fixtures/otel_fan_in_dependencies.json"))
    (interaction,) = trace.interactions
    assert interaction.interaction_id == "session_003"
    assert [call.gap_s for call in interaction.calls] == [0.0, 2.5, 3.0, 1.0]
    assert {call.agent for call in interaction.calls} == {"test-service"}
    assert [call.prompt_tokens for call in interaction.calls] == [10, 11, 9, 185]


def test_recorded_prompts_share_prefixes():
    trace = read_trace(shared_trace("fixtures/otel_prefix_sharing_example.json"))
    runs = {run.interaction_id: run for run in trace.interactions}
    assert [(name, run.arrival_s) for name, run in runs.items()] == [
        ("independent_trace_1", 0.0),
        ("independent_trace_2", 2.0),
        ("conversation_trace", 4.0),
        ("independent_trace_3", 12.0),
    ]
    turns = runs["conversation_trace"].calls
    assert [call.deps for call in turns] == [
        (),
        ("span_conv_turn1",),
        ("span_conv_turn2",),
        ("span_conv_turn3",),
    ]
    assert [call.gap_s for call in turns] == [0.0, 1.0, 0.5, 0.2]
    assert [call.prompt_tokens for call in turns] == [100, 180, 270, 380]
    assert [call.output_tokens for call in turns] == [50, 60, 70, 55]
    assert {call.system_tokens for call in turns} == {23}
    ids = [list(call.block_ids) for call in turns]
    for before, after in pairwise(ids):
        assert len(before) < len(after)
        assert after[: len(before)] == before
    others = [run.calls[0] for name, run in runs.items() if name != "conversation_trace"]
    assert not set(ids[-1]) & {block for call in others for block in call.block_ids}


def test_all_recordings_are_merged_and_replayed(capsys, tmp_path):
    names = [*GRAPHS, "prefix_sharing_example"]
    paths = [str(shared_trace(f"fixtures/otel_{name}.json")) for name in names]
    out = tmp_path / "out.json"
    systems = ["--system", "fcfs", "fairserve"]
    code = cli.main(["simulate", "--trace", *paths, *systems, "--json", str(out)])
    assert code == 0, capsys.readouterr().err
    document = json.loads(out.read_text())
    for system in document["systems"].values():
        assert system["served_interactions_share"] == 1.0
        assert system["makespan_s"] > 27  # recorded gaps alone take that long in the longest run
        assert system["prefix_hit_rate"] > 0


def test_a_recorded_file_survives_the_interaction_format(tmp_path):
    trace = read_trace(shared_trace("fixtures/otel_code_review_workflow.json"))
    write_trace(trace, tmp_path / "ours.jsonl")
    assert read_trace(tmp_path / "ours.jsonl").interactions == trace.interactions
