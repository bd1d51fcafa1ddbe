"""A profile may change while calls run: no counter moves, and a call keeps the rate of its dispatch."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsc_feeder import WORKERS, call, made, queue

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.throttling.base import Limits

APPS = ("one", "two")
PROMPT = 100


class ChangingProfiles:
    """Calls of two apps of one user, charged as they run, while the profiles of the apps change."""

    def __init__(self, seed, charge):
        self.rng = random.Random(seed)
        self.options = WscOptions(charge=charge)
        self.known, self.sizes = Directory(), {}
        for app in APPS:
            self.set_profile(app, 110.0)
        self.feeder = made(self.known, self.options)
        self.running, self.number, self.due, self.changes = {}, 0, 0.0, 0

    @property
    def counters(self):
        return [self.feeder.counter(path) for path in (("t", "u"), ("t",))]

    def set_profile(self, app, tokens):
        profile = AppProfile((StageProfile(tokens, 0, 0),))
        self.known.take(AppChanged(app, profile, Limits()))
        self.sizes[app] = tokens

    def step(self):
        rng, feeder = self.rng, self.feeder
        action = rng.random()
        if action < 0.35:
            self.number += 1
            app, output = rng.choice(APPS), rng.randint(1, 40)
            queue(feeder, call(f"c{self.number}", "u", app=app, output=output))
        elif action < 0.6 and len(feeder):
            chosen = feeder.peek(WORKERS)
            charge_factor = feeder.dispatch(chosen.call_id, 0)
            rate = 1.0 / self.sizes[chosen.app]
            assert charge_factor == pytest.approx(1200.0 * rate), "new calls have the new profile"
            self.running[chosen.call_id] = [chosen, 0, rate]
        elif action < 0.75 and self.running:
            state = self.running[rng.choice(list(self.running))]
            state[1] = rng.randint(state[1], state[0].max_output_tokens)
            if rng.random() < 0.5:
                feeder.charge(state[0].call_id, TokenUsage(PROMPT, 0, 0, state[1]))
            elif state[1]:
                feeder.charge(state[0].call_id, TokenUsage(PROMPT, 0, 0, 0))
                feeder.decoded([(state[0].call_id, state[1])])
        elif action < 0.85 and self.running:
            self.end(rng.choice(list(self.running)))
        elif action < 0.88 and self.running:
            chosen = self.running.pop(rng.choice(list(self.running)))[0]
            feeder.requeue(chosen)
        else:
            before = self.counters
            self.set_profile(rng.choice(APPS), rng.choice([11.0, 110.0, 1100.0, 1e6]))
            self.changes += 1
            assert self.counters == before, "a change moves no counter"

    def end(self, call_id):
        _, output, rate = self.running.pop(call_id)
        self.feeder.finish(call_id, TokenUsage(PROMPT, 0, 0, output))
        self.due += (PROMPT + output) * rate

    def restart(self):
        state = json.loads(json.dumps([self.feeder.snapshot(), self.known.snapshot()]))
        calls = {each.call_id: each for each in self.feeder.waiting()}
        calls |= {call_id: state[0] for call_id, state in self.running.items()}
        before = self.counters
        self.known = Directory()
        self.known.restore(state[1])
        self.feeder = made(self.known, self.options)
        for each in calls.values():
            self.feeder._locality.register(each)
        self.feeder.restore(state[0], calls)
        assert self.counters == pytest.approx(before)


@given(st.integers(0, 2**32), st.sampled_from(["expected", "finish"]))
def test_a_call_is_charged_by_the_profile_of_its_dispatch(seed, charge):
    """The rate survives all changes before its end, and restarts from snapshots."""
    life = ChangingProfiles(seed, charge)
    for _ in range(160):
        life.step()
        if life.rng.random() < 0.03:
            life.restart()
    for call_id in list(life.running):
        life.end(call_id)
    assert life.changes > 2
    assert life.counters == pytest.approx([life.due] * 2)
