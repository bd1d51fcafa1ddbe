"""Calls that are not streamed: a client whose calls are longer than expected does not run ahead.

One worker decodes one token per running call and step, so the speed of a sequence is known. A client
that cheats has calls that are expected to be short and are long, at once or in turns with short ones.
"""

import random
from dataclasses import replace
from statistics import mean

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.whole_calls import FIRST_TOKENS_PER_S, WholeCalls
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

STEP_S, TICK_S, PROMPT, EXPECTED = 0.02, 0.25, 20, 20
SLOTS = 8
"""Calls that the worker runs at a time."""
SLICE = PROMPT + EXPECTED
CONTESTS = 6


class Contest:
    """``cheat`` and ``honest`` always have calls waiting. Each step knows the true service of both."""

    def __init__(self, outputs, *, streamed):
        # A small window and no fair order at the worker: the feeder alone decides.
        system = replace(SYSTEMS["fairserve"], feed_window=1e-4, local="fcfs", local_options={})
        self.cluster = VirtualCluster(
            system, workers=1, kv_tokens=100_000, slots=SLOTS, step_s=STEP_S, prefill_s_per_token=0
        )
        profile = AppProfile((StageProfile(PROMPT, 0, EXPECTED),))
        self.cluster.event(ev.AppChanged("app", profile, Limits()))
        self.cluster.on_end = lambda call, outcome: self.send(call.user)
        self.outputs, self.streamed, self.number = outputs, streamed, 0
        for user in ("cheat", "honest"):
            for _ in range(3 * SLOTS):
                self.send(user)

    def send(self, user):
        self.number += 1
        output = EXPECTED if user == "honest" else self.outputs(self.number)
        call = make_call(
            f"{user}-{self.number}", user=user, tokens=prompt((self.number, PROMPT)), output=output
        )
        call.streamed = user == "honest" or self.streamed
        call.declared_output_tokens = EXPECTED
        self.cluster.at(self.cluster.now_s, call)

    def served(self, user):
        """Return the typical calls that a client has received, those in progress included."""
        running = self.cluster.workers["w0"].running.values()
        tokens = sum(PROMPT + state[2] for state in running if state[0].user == user)
        ended = (usage for name, (_, usage) in self.cluster.ended.items() if name.startswith(user))
        return (tokens + sum(each.prompt_tokens + each.output_tokens for each in ended)) / SLICE


def ahead(contest, seconds=24.0):
    """Return by how many typical calls the cheat is ahead at most."""
    most = 0.0
    for step in range(1, int(seconds / 0.5)):
        contest.cluster.run(0.5 * step)
        most = max(most, contest.served("cheat") - contest.served("honest"))
    return most


@pytest.mark.parametrize("lengths", [(400,), (1600,), (20, 800), (1, 800), (1, 20, 20, 400)])
def test_whole_calls_run_ahead_no_further_than_streamed_ones(lengths, seed):
    """Only the ``SLOTS`` calls that run may differ, by a typical call each.

    That is so in the mean: in one contest the lead depends on how many long calls meet.
    """
    rng = random.Random(seed)
    gains = {True: [], False: []}
    for _ in range(CONTESTS):
        outputs = rng.choices(lengths, k=5000)
        for streamed, found in gains.items():
            found.append(ahead(Contest(outputs.__getitem__, streamed=streamed)))
    assert mean(gains[False]) <= mean(gains[True]) + SLOTS


def test_the_expectation_of_a_whole_call_follows_its_time():
    """It is at least what the model generates in the time, at most twice that or the limit."""
    calls = WholeCalls()
    call = make_call("c", output=1000)
    call.streamed, call.expected_output_tokens = False, 10
    calls.start(call, 5.0)
    expected = 10
    for tick in range(60):
        now_s = 5.0 + TICK_S * tick
        for name, tokens in calls.overdue(now_s):
            assert name == "c"
            expected = tokens
        generated = FIRST_TOKENS_PER_S * (now_s - 5.0)
        assert min(1000, generated) <= expected <= max(10, min(1000, 2 * generated))
    assert expected == 1000
    calls.remove("c")
    assert not list(calls.overdue(1e9))


def test_the_speed_is_that_of_the_output_not_of_short_calls():
    calls = WholeCalls()

    def complete(output, seconds):
        call = make_call("c", output=output)
        call.streamed = False
        calls.start(call, 0.0)
        calls.completed("c", output, seconds)
        calls.remove("c")

    complete(1000, 25.0)
    assert calls.tokens_per_s == pytest.approx(40.0)
    for _ in range(40):
        complete(1, 2.0)
    assert calls.tokens_per_s > 38
    before = calls.tokens_per_s
    streamed = make_call("s", output=100)
    calls.start(streamed, 0.0)
    calls.completed("s", 100, 1e-6)
    assert calls.tokens_per_s == before, "its progress is known"


def test_a_speed_that_falls_postpones_the_next_expectation():
    """Every call of ``overdue`` returns, also where the time is that of the old speed."""
    calls = WholeCalls()
    for name, output in (("a", 600), ("b", 10_000)):
        call = make_call(name, output=output)
        call.streamed, call.expected_output_tokens = False, output // 2
        calls.start(call, 0.0)
    assert calls.overdue(2.9) == []
    calls.completed("a", 600, 60.0)
    calls.remove("a")
    assert calls.tokens_per_s == pytest.approx(10.0)
    assert calls.overdue(50.0) == [], "a tenth of the first speed"
    assert calls.overdue(501.0) == [("b", 10_000)]


def test_a_call_that_ends_early_leaves_no_due_time():
    """A client may expect any output of its calls, and cancel them: their due times are far away."""
    calls = WholeCalls()
    for number in range(100):
        call = make_call(f"c{number}", output=1 << 20, streamed=False)
        call.expected_output_tokens = 1 << 19
        calls.start(call, float(number))
        calls.remove(call.call_id)
    assert len(calls._due) == 0
