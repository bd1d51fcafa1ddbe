"""Recorded runs driven as programs by a virtual clock begin every call at its recorded time."""

import heapq

import networkx as nx
import pytest
from shared_traces import RECORDED_GRAPHS, recorded_graph

from fairserve.interactions.programs.program import parse_program
from fairserve.interactions.programs.program_run import ProgramRun

SHAPES = {
    "simple_chain": (3, 1),
    "parallel_requests": (4, 2),
    "fan_in_dependencies": (2, 3),
    "software_architecture_review": (9, 4),
}
"""Stages and parallelism of some recordings, counted by hand."""


def as_program(interaction):
    nodes = [
        {
            "id": call.call_id,
            "agent": call.agent,
            "prompt": "go" + "".join(f" {{{{{dep}.output}}}}" for dep in call.deps),
            "expected_output_tokens": max(1, call.output_tokens),
        }
        for call in interaction.calls
    ]
    return parse_program({"model": "m", "nodes": nodes})


@pytest.mark.parametrize("name", RECORDED_GRAPHS)
def test_a_recorded_run_is_a_valid_program(name):
    for interaction, times in recorded_graph(name):
        calls = {call.call_id: call for call in interaction.calls}
        program = as_program(interaction)
        reference = nx.DiGraph((dep, call) for call in calls for dep in calls[call].deps)
        reference.add_nodes_from(calls)

        def longest(node, reference=reference):
            before = reference.subgraph(nx.ancestors(reference, node) | {node})
            return 1 + nx.dag_longest_path_length(before)

        stages = {call: longest(call) for call in calls}
        assert program.graph.stages == stages
        assert program.graph.parallelism == max(map(list(stages.values()).count, stages.values()))

        durations = {call: duration for call, (_, duration) in times.items()}
        for call in calls:
            for dep in calls[call].deps:
                reference.edges[dep, call]["weight"] = durations[dep]
        begins = drive(program, calls, durations)
        assert begins == pytest.approx({call: begin for call, (begin, _) in times.items()})

        path, length = program.graph.critical_path(durations)
        assert length == pytest.approx(
            nx.dag_longest_path_length(reference, default_weight=0) + durations[path[-1]]
        )
        gaps = sum(calls[call].gap_s for call in path)
        end_s = max(begin + duration for begin, duration in times.values())
        assert length + gaps <= end_s + 1e-9


def drive(program, calls, durations):
    """Return the beginning of each call, if it runs for its duration, a gap after its dependencies."""
    run = ProgramRun(program)
    begins, running = {}, []

    def begin(tasks, now_s):
        for task in tasks:
            assert task.parents == calls[task.node].deps
            begins[task.node] = now_s + calls[task.node].gap_s
            end_s = begins[task.node] + durations[task.node]
            heapq.heappush(running, (end_s, task.task_id, task.body()["prompt"]))

    begin(run.start(), 0.0)
    while running:
        now_s, task, prompt = heapq.heappop(running)
        assert prompt == "go" + "".join(f" said by {dep}" for dep in calls[task].deps)
        begin(run.succeeded(task, f"said by {task}"), now_s)
    assert run.state == "complete"
    return begins


@pytest.mark.parametrize("name", SHAPES)
def test_the_shape_equals_the_recorded_one(name):
    ((interaction, _),) = recorded_graph(name)
    graph = as_program(interaction).graph
    assert (len(graph.columns), graph.parallelism) == SHAPES[name]
