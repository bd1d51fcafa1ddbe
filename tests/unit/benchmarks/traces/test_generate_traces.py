"""Test the properties of every generated trace with programs: graphs, block ids, seeds."""

from collections import Counter
from dataclasses import replace

import pytest

from fairserve.benchmarks.traces.generate.agent_mix import (
    AgentMixOptions,
    generate_agent_mix,
)
from fairserve.benchmarks.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    Misbehaviour,
    generate_dlpm,
)


def _dlpm(name, misbehaviour):
    load = replace(DLPM_WORKLOADS[name].load, duration_s=40.0)
    return lambda seed: generate_dlpm(name, misbehaviour, seed, load=load)


GENERATORS = {
    f"{name}-{misbehaviour}": _dlpm(name, misbehaviour)
    for name in DLPM_WORKLOADS
    for misbehaviour in Misbehaviour
} | {
    "agent-mix": lambda seed: generate_agent_mix(seed, AgentMixOptions(duration_s=100.0)),
}


@pytest.fixture(params=GENERATORS, scope="module")
def generate(request):
    return GENERATORS[request.param]


@pytest.fixture(scope="module")
def trace(generate):
    return generate(1)


GOLDEN = {
    "long-context-qa-none": (116, 116, 2532759, 1704, 47591),
    "long-context-qa-S1": (229, 229, 4739792, 3305, 66010),
    "long-context-qa-S2": (116, 116, 3380960, 1704, 63779),
    "tree-of-thoughts-none": (24, 720, 389954, 180958, 4109),
    "tree-of-thoughts-S1": (24, 3820, 2400462, 1109556, 12580),
    "tree-of-thoughts-S2": (24, 720, 601154, 180958, 4550),
    "judge-none": (116, 348, 943959, 87241, 22283),
    "judge-S1": (116, 894, 2424940, 225957, 32509),
    "judge-S2": (116, 348, 1014159, 87241, 22340),
    "chat-none": (72, 281, 168128, 38099, 2665),
    "chat-S1": (328, 1267, 799436, 176430, 12466),
    "chat-S2": (72, 281, 269528, 38099, 2762),
    "agent-mix": (207, 386, 2161292, 42055, 65539),
}
"""Recorded interactions, calls, prompt tokens, output tokens and distinct blocks of seed 1."""


@pytest.mark.parametrize("name", GENERATORS)
def test_the_trace_equals_the_recorded_one(name):
    trace = GENERATORS[name](1)
    calls = [call for run in trace.interactions for call in run.calls]
    seen = (
        len(trace),
        len(calls),
        sum(call.prompt_tokens for call in calls),
        sum(call.output_tokens for call in calls),
        len({block for call in calls for block in call.block_ids}),
    )
    assert seen == GOLDEN[name]


def test_the_trace_is_determined_by_the_seed(generate, trace):
    assert generate(1) == trace
    assert generate(2) != trace


def test_interactions_have_unique_ids_and_ascending_arrivals(trace):
    assert len(trace) >= 5
    assert max(Counter(i.interaction_id for i in trace.interactions).values()) == 1
    arrivals = [i.arrival_s for i in trace.interactions]
    assert arrivals == sorted(arrivals)
    assert {i.scope for i in trace.interactions} == {"file"}


def test_dependencies_come_before_their_dependents(trace):
    for interaction in trace.interactions:
        known = set()
        for call in interaction.calls:
            assert known.issuperset(call.deps)
            assert call.call_id not in known
            assert call.gap_s >= 0
            assert call.gap_s == 0 or call.deps
            known.add(call.call_id)
        assert not interaction.calls[0].deps


def test_counts_are_positive_and_every_full_block_has_an_id(trace):
    assert trace.block_tokens == 16
    for interaction in trace.interactions:
        for call in interaction.calls:
            assert call.output_tokens >= 1
            assert call.input_tokens >= 1
            assert call.system_tokens >= 0
            assert sum(count for _, count in call.blocks) == call.prompt_tokens // 16


def test_an_id_always_follows_the_same_id(trace):
    before = {}
    for interaction in trace.interactions:
        for call in interaction.calls:
            last = None
            for block in call.block_ids:
                assert before.setdefault(block, last) == last
                last = block


def test_a_client_has_a_system_prompt_of_its_own():
    trace = generate_dlpm("judge", Misbehaviour.NONE, 0)  # system prompts of four blocks
    own = {i.user: {next(c.block_ids) for c in i.calls} for i in trace.interactions}
    assert len(own) == len(set.union(*own.values())) == 3
