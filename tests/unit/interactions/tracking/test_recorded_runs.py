"""The tracker finds the recorded graph of runs that are replayed with their recorded times."""

import pytest
from shared_traces import RECORDED_GRAPHS, recorded_graph
from virtual_cluster import make_call

from fairserve.interactions.profiles.profile import DEFAULT_PROFILE as PROFILE
from fairserve.interactions.tracking.graph import InteractionGraph
from fairserve.interactions.tracking.tracker import Tracker


def replayed(interaction, times, *, declared):
    """Return the stages, and parents by call, of a run whose calls name their parents or do not."""
    tracker, stages, parents, calls = Tracker(), {}, {}, {}
    moments = []
    for call in interaction.calls:
        begin_s, duration_s = times[call.call_id]
        moments.append((begin_s, 1, call))
        moments.append((begin_s + duration_s, 0, call))
    # At equal times calls end before others begin, and parents begin before their children.
    order = {call.call_id: number for number, call in enumerate(interaction.calls)}
    for now_s, begins, call in sorted(moments, key=lambda m: (*m[:2], order[m[2].call_id])):
        if not begins:
            tracker.finish(calls[call.call_id], "completed", 1, PROFILE, now_s)
            continue
        made = make_call(call.call_id, run="R", parents=tuple(call.deps) if declared else None)
        calls[call.call_id] = made
        attachment = tracker.attach(made, PROFILE, now_s)
        tracker.accept(made, attachment, now_s)
        stages[call.call_id] = attachment.stage
        parents[call.call_id] = tracker.parent_ids(made, attachment)
    return stages, parents


@pytest.mark.parametrize("name", RECORDED_GRAPHS)
def test_named_parents_give_the_recorded_graph(name):
    for interaction, times in recorded_graph(name):
        stages, parents = replayed(interaction, times, declared=True)
        expected = InteractionGraph({call.call_id: call.deps for call in interaction.calls})
        found = InteractionGraph(parents)
        weights = {call: duration_s for call, (_, duration_s) in times.items()}
        assert stages == dict(expected.stages)
        assert set(found.digraph.edges) == set(expected.digraph.edges)
        assert found.parallelism == expected.parallelism
        assert found.critical_path(weights).length == expected.critical_path(weights).length


@pytest.mark.parametrize("name", RECORDED_GRAPHS)
def test_inference_by_time_finds_all_recorded_parents(name):
    for interaction, times in recorded_graph(name):
        _, parents = replayed(interaction, times, declared=False)
        found = InteractionGraph(parents)
        for call in interaction.calls:
            assert set(call.deps) <= found.ancestors(call.call_id)
