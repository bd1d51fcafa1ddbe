"""The observer sees every step, counts its work, and changes nothing."""

import itertools

import numpy as np
import pytest
import torch

from fairserve.engine.torch.batch import assemble
from fairserve.engine.torch.bench.observed_engine import ObservedEngine, TimedGraphs
from fairserve.engine.torch.bench.runner import PARTS
from fairserve.engine.torch.engine import Engine
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.scheduling.local.fcfs import Fcfs

OPTIONS = EngineOptions(kv_tokens=1024, max_batch=4, token_budget=16)


def requests(*sizes):
    random = np.random.default_rng(3)
    return [
        SequenceRequest(
            f"s{number}",
            "c",
            random.integers(0, 256, prompt).astype(np.uint32),
            SamplingParams(max_tokens=output, temperature=0, ignore_eos=True),
        )
        for number, (prompt, output) in enumerate(sizes)
    ]


@pytest.fixture
def ticking(llama):
    """Return an engine whose clock advances by one at each reading."""
    ticks = itertools.count()
    return ObservedEngine(
        llama, Fcfs(), OPTIONS, lambda events: None, clock=lambda: float(next(ticks))
    )


def drain(engine, *sizes):
    for request in requests(*sizes):
        engine.add(request)
    while engine.step():
        pass


def test_the_parts_of_a_step_are_contiguous(ticking):
    ticking.recording = True
    drain(ticking, (20, 3))
    assert len(PARTS) == 5
    for step in ticking.steps:
        # Each part lies between two consecutive readings of the clock; scheduling has two, before
        # and after the observer counts.
        assert step.parts_s == (2.0, 1.0, 1.0, 1.0, 1.0)
        assert step.total_s == 6


def test_loads_count_prompt_tokens_pairs_decodes_and_held_tokens(ticking):
    ticking.recording = True
    drain(ticking, (20, 3), (3, 1))
    loads = [step.load for step in ticking.steps]
    assert [
        (load.prefill_tokens, load.prefill_pairs, load.sequences, load.held_tokens)
        for load in loads
    ] == [
        (16, 136, 0, 0),  # a chunk of the first prompt fills the budget
        (4 + 3, 17 + 18 + 19 + 20 + 6, 0, 0),
        (0, 0, 1, 21),
        (0, 0, 1, 22),
    ]


def test_nothing_is_recorded_by_default(ticking):
    drain(ticking, (20, 3))
    assert ticking.steps == []
    ticking.recording = True
    drain(ticking, (5, 2))
    assert len(ticking.steps) == 2
    ticking.recording = False
    drain(ticking, (6, 2))
    assert len(ticking.steps) == 2


@pytest.mark.parametrize("recording", [False, True])
def test_outputs_and_events_equal_those_of_the_plain_engine(llama, recording):
    def run(kind):
        events = []
        engine = kind(llama, Fcfs(), OPTIONS, events.extend)
        if recording and kind is ObservedEngine:
            engine.recording = True
        drain(engine, (20, 5), (3, 2), (40, 4))
        return events, engine

    plain, _ = run(Engine)
    observed, engine = run(ObservedEngine)
    assert observed == plain
    assert {name: len(tokens) for name, tokens in engine.outputs.items()} == {
        "s0": 5,
        "s1": 2,
        "s2": 4,
    }


def test_a_graph_counts_as_forward_time_from_its_launch(ticking, llama):
    class Graphs:
        def logits(self, decodes, pending):
            batch = assemble(list(decodes), ticking._kv, ticking._planner)
            return llama.logits(batch.input_ids, batch.positions, batch.logit_rows, batch.state)

    ticking._graphs = TimedGraphs(Graphs(), ticking._marks)
    ticking.recording = True
    drain(ticking, (20, 3))
    assert [step.load.sequences for step in ticking.steps] == [0, 0, 1, 1]
    assert {step.parts_s for step in ticking.steps} == {(2.0, 1.0, 1.0, 1.0, 1.0)}
    assert len(ticking.outputs["s0"]) == 3


def test_an_idle_step_is_none(ticking):
    ticking.recording = True
    assert not ticking.step()
    assert ticking.steps == []


def test_the_wrapped_model_behaves_as_the_model(ticking, llama):
    assert ticking.loaded.model.config is llama.model.config
    assert isinstance(ticking.loaded.device, torch.device)
