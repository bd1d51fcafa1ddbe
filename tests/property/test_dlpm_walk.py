"""Test DLPM's walk over the waiting calls of one worker: its turns, its options, its rejections."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reserving_engine import Engine

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions


def backlog(engine, rng, clients, per_client, longest_prompt, longest_output):
    for _ in range(per_client):
        for client in clients:
            prompt_tokens = rng.randint(1, longest_prompt)
            matched = rng.choice([0, 0, prompt_tokens // 2, prompt_tokens - 1])
            engine.add(client, prompt_tokens, rng.randint(1, longest_output), matched)


@given(st.integers(0, 2**32), st.sampled_from([1.0, 300.0, 5000.0]))
def test_every_call_is_served_eventually(seed, quantum):
    rng = random.Random(seed)
    engine = Engine(DlpmOptions(quantum=quantum), 1500)
    backlog(engine, rng, ["a", "b", "c"], 10, 600, 30)
    for _ in range(3000):
        engine.step()
        if not len(engine.scheduler) and not engine.running:
            break
    assert len(engine.order) == 30
    assert engine.held == 0


def test_a_heavy_client_does_not_delay_a_light_one():
    """One client floods; the other calls occasionally and is served immediately, whatever the queue."""
    engine = Engine(DlpmOptions(quantum=200), 1000)
    for _ in range(500):
        engine.add("flood", 100, 20)
    for _ in range(50):
        engine.step()
    light = engine.add("light", 100, 20)
    waited = 0
    while light not in engine.order and waited < 200:
        engine.step()
        waited += 1
    assert waited <= 25, "one turn of the batch"


def test_a_small_quantum_alternates_and_a_large_one_follows_the_prefix():
    """Q -> 0 is VTC with the extend cost; Q -> inf is longest prefix match."""
    for quantum, expected_switches in ((1.0, 19), (1e9, 1)):
        engine = Engine(DlpmOptions(quantum=quantum), 120)
        for _ in range(10):
            engine.add("long", 100, 1, matched=90)
            engine.add("short", 10, 1, matched=0)
        for _ in range(200):
            engine.step()
        clients = [call_id.split("-")[0] for call_id in engine.order]
        switches = sum(a != b for a, b in itertools.pairwise(clients))
        if quantum == 1.0:
            assert switches >= 10, clients
        else:
            assert switches == expected_switches, clients
            assert clients[0] == "long"


def test_refill_when_stuck_is_work_conserving_and_the_paper_is_not():
    """One client in credit has a call that does not fit, another in debt has one that would fit."""
    idle = {}
    for stuck in (True, False):
        engine = Engine(DlpmOptions(quantum=100, refill_when_stuck=stuck, max_bypass=0), 1000)
        engine.add("debt", 400, 100)  # deep in debt
        engine.add("debt", 200, 150)
        for _ in range(3):
            engine.step()
        engine.add("big", 600, 300)
        for _ in range(5):
            engine.add("debt", 200, 100)
        steps_idle = 0
        for _ in range(600):
            fits = any(
                engine.held + call.prompt_tokens + call.max_output_tokens <= engine.capacity
                for call in engine.waiting.values()
            )
            admitted = engine.step()
            steps_idle += bool(fits and not admitted)
        idle[stuck] = steps_idle
    assert idle[True] == 0
    assert idle[False] > 0


def test_a_preempted_call_is_charged_for_its_prompt_once():
    engine = Engine(DlpmOptions(quantum=100), 1000)
    call_id = engine.add("a", 50, 5)
    engine.step()
    before = engine.scheduler.deficit("a")
    engine.scheduler.requeue(call_id)
    call, need, _ = engine.running.pop(call_id)
    engine.held -= need
    engine.waiting[call_id] = call
    engine.step()
    assert engine.scheduler.deficit("a") == before - 2


def test_a_large_call_is_admitted_despite_small_ones():
    """max_bypass: after 16 others were admitted first, the walk stops at it until it fits."""
    for limit, served in ((16, True), (0, False)):
        engine = Engine(DlpmOptions(quantum=1e6, max_bypass=limit), 1000)
        for _ in range(4):
            engine.add("small", 100, 100, matched=50)
        engine.step()
        big = engine.add("big", 900, 50)
        for step in range(600):
            if step % 20 == 0:
                engine.add("small", 100, 100, matched=50)
            engine.step()
        assert (big in engine.order) is served


def test_weights_divide_the_service():
    engine = Engine(DlpmOptions(quantum=50), 300)
    for _ in range(200):
        engine.add("double", 20, 10, weight=2.0)
        engine.add("single", 20, 10, weight=1.0)
    for _ in range(300):
        engine.step()
    assert engine.service["double"] / engine.service["single"] == pytest.approx(2.0, rel=0.1)


def test_idle_clients_in_credit_are_evicted():
    engine = Engine(DlpmOptions(quantum=1e6), 10_000)
    for number in range(50):
        engine.add(f"c{number}", 10, 1)
    for _ in range(5):
        engine.step()
    assert not engine.running
    assert len(engine.scheduler._order) == 0


def test_invalid_input_is_rejected():
    scheduler = Dlpm()
    scheduler.add(LocalCall("x", "c", 1, 1))
    with pytest.raises(ValueError, match="already scheduled"):
        scheduler.add(LocalCall("x", "c", 1, 1))
    with pytest.raises(ValueError, match="weight is 0"):
        scheduler.add(LocalCall("y", "c", 1, 1, weight=0))
    with pytest.raises(KeyError):
        scheduler.finish("nobody")
    with pytest.raises(ValueError, match="quantum is 0"):
        DlpmOptions(quantum=0)
    with pytest.raises(ValueError, match="stuck_advance is -1; allowed: not negative"):
        DlpmOptions(stuck_advance=-1)
