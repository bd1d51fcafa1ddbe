"""The theorems of the DLPM paper on one worker, on randomised backlogs, with outputs reserved."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_worker import FixedCache

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm, DlpmOptions


class Engine:
    """One worker that reserves prompt and output, decodes one token per call and step."""

    def __init__(self, options, capacity):
        self.scheduler = Dlpm(options)
        self.options, self.capacity, self.held = options, capacity, 0
        self.cache = FixedCache()
        self.waiting = {}
        self.running = {}
        self.service, self.order = {}, []
        self.numbers = 0

    def add(self, client, prompt_tokens, output, matched=0, weight=1.0):
        self.numbers += 1
        call_id = f"{client}-{self.numbers}"
        self.cache.matches[call_id] = min(matched, prompt_tokens - 1)
        call = LocalCall(call_id, client, prompt_tokens, output, weight=weight)
        self.scheduler.add(call)
        self.waiting[call_id] = call
        self.service.setdefault(client, 0.0)
        return call_id

    def step(self):
        self.scheduler.start_pass(self.cache)
        admitted = 0
        while (call := self.scheduler.peek()) is not None:
            matched = self.cache.matched_tokens(call)
            need = call.prompt_tokens - matched + call.max_output_tokens
            if self.held + need > self.capacity:
                self.scheduler.skip()
                continue
            self.scheduler.accept(matched)
            del self.waiting[call.call_id]
            admitted += 1
            self.held += need
            self.running[call.call_id] = [call, need, 0]
            self.order.append(call.call_id)
            self.service[call.client_id] += self.options.we * (call.prompt_tokens - matched)
        for call_id, state in list(self.running.items()):
            call = state[0]
            state[2] += 1
            self.scheduler.decoded(call_id, 1)
            self.service[call.client_id] += self.options.wq
            if state[2] == call.max_output_tokens:
                del self.running[call_id]
                self.held -= state[1]
                self.scheduler.finish(call_id)
        return admitted


def backlog(engine, rng, clients, per_client, longest_prompt, longest_output):
    for _ in range(per_client):
        for client in clients:
            prompt_tokens = rng.randint(1, longest_prompt)
            matched = rng.choice([0, 0, prompt_tokens // 2, prompt_tokens - 1])
            engine.add(client, prompt_tokens, rng.randint(1, longest_output), matched)


def waiting_clients(engine):
    return {call.client_id for call in engine.waiting.values()}


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "clients": st.integers(2, 5),
        "quantum": st.sampled_from([1.0, 50.0, 500.0, 5000.0]),
        "longest_prompt": st.sampled_from([10, 200, 1000]),
        "longest_output": st.sampled_from([2, 20, 60]),
        "capacity": st.sampled_from([1200, 3000]),
        "refill_when_stuck": st.booleans(),
    }
)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_deficits_and_service_of_backlogged_clients_are_bounded(case):
    """Lemma A.1: -U <= q <= Q. Theorem 4.1: |Wf - Wg| <= 2 (U + Q) while both are backlogged.

    With ``refill_when_stuck`` a client in credit that cannot be fitted blocks no refill, so Theorem
    4.1 is checked on the paper's own rule; Lemma A.1 holds for both.
    """
    rng = random.Random(case["seed"])
    options = DlpmOptions(
        quantum=case["quantum"], refill_when_stuck=case["refill_when_stuck"], max_bypass=0
    )
    engine = Engine(options, case["capacity"])
    clients = [f"k{number}" for number in range(case["clients"])]
    backlog(engine, rng, clients, 25, case["longest_prompt"], case["longest_output"])
    most = case["longest_prompt"] + 2 * case["longest_output"]
    running_at_once = sum(1 for _ in clients)  # at least one call of each may be running
    assert running_at_once
    start = dict(engine.service)
    for _ in range(150):
        engine.step()
        for client in clients:
            assert engine.scheduler.deficit(client) <= case["quantum"] + 1e-6
        if waiting_clients(engine) != set(clients):
            break
        if not case["refill_when_stuck"]:
            gained = [engine.service[c] - start[c] for c in clients]
            # U counts everything a client may have admitted on its last positive deficit: the
            # extend part of one call and the outputs of all its running calls.
            outputs = 2 * sum(state[0].max_output_tokens for state in engine.running.values())
            bound = 2 * (case["longest_prompt"] + max(outputs, most) + case["quantum"])
            assert max(gained) - min(gained) <= bound + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1.0, 300.0, 5000.0]))
def test_everything_is_served_in_the_end(seed, quantum):
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
    """The flood of one client; the other asks now and then: served at once, whatever the queue."""
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


def test_a_small_quantum_takes_turns_and_a_large_one_follows_the_prefix():
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
    """A client in credit whose call does not fit, another in debt whose call would fit."""
    idle = {}
    for stuck in (True, False):
        engine = Engine(DlpmOptions(quantum=100, refill_when_stuck=stuck, max_bypass=0), 1000)
        engine.add("debt", 400, 100)  # long in debt
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


def test_a_preempted_call_pays_for_its_prompt_once():
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


def test_a_call_that_never_fits_beside_small_ones_gets_its_turn():
    """max_bypass: after 16 others went first, the walk stops at it until it fits."""
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


def test_idle_clients_in_credit_are_forgotten():
    engine = Engine(DlpmOptions(quantum=1e6), 10_000)
    for number in range(50):
        engine.add(f"c{number}", 10, 1)
    for _ in range(5):
        engine.step()
    assert not engine.running
    assert len(engine.scheduler._order) == 0


def test_bad_input_is_refused():
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
