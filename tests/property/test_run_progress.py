"""Priority by progress chooses, of active runs within the slack, the one nearest its expected end."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsc_feeder import (
    LONG,
    TOKENS,
    WORKERS,
    cache,
    call,
    charge,
    directory,
    made,
    queue,
    serve,
    used,
)

from fairserve.scheduling.feeders.wsc_options import PAPER, WscOptions

APPS = {"app": (100, 10)}
USERS = "abcd"


def next_by_plain_rule(feeder, active_runs, calls):
    """Return the next of the queued calls, by the plain rule, for feeders without caches.

    ``active_runs``: the active runs of the test; ``calls``: queued ones by id.
    """
    options = feeder.options
    counters = {each.user: feeder.counter(("t", each.user)) for each in calls.values()}
    least = min(counters.values())
    within = {
        user for user, value in counters.items() if value <= least + options.interaction_slack
    }
    firsts = {}
    for each in sorted(calls.values(), key=lambda each: seq_of(feeder, each)):
        firsts.setdefault(each.user, each)
    oldest = min(firsts.values(), key=lambda each: (counters[each.user], seq_of(feeder, each)))
    if options.max_bypass and feeder._queued[oldest.call_id].bypassed >= options.max_bypass:
        return oldest.call_id
    running = [
        each
        for each in calls.values()
        if each.interaction_id in active_runs and each.user in within
    ]
    if not running:
        return oldest.call_id

    def key(each):
        seq = seq_of(feeder, each)
        if options.run_priority == "arrival":
            return (counters[each.user], seq)
        return (each.remaining_calls, counters[each.user], seq)

    return min(running, key=key).call_id


def seq_of(feeder, each):
    return feeder._queued[each.call_id].seq


class FeederHistory:
    """A feeder through a random history; the active runs are tracked beside it."""

    def __init__(self, seed, run_priority):
        self.rng = random.Random(seed)
        self.options = WscOptions(
            run_priority=run_priority,
            interaction_slack=self.rng.choice([0.0, 1.0, 3.0, math.inf]),
            locality_slack=0.0,
            max_bypass=self.rng.choice([0, 2, 16]),
        )
        self.feeder = made(directory(**APPS), self.options)
        self.running, self.active_runs, self.number = {}, set(), 0

    @property
    def queued(self):
        return {each.call_id: each for each in self.feeder.waiting()}

    def step(self):
        rng, feeder = self.rng, self.feeder
        action = rng.random()
        if action < 0.45:
            self.number += 1
            user = rng.choice(USERS)
            run = rng.choice([None, f"{user}-{rng.randrange(3)}"])
            remaining = float(rng.choice([1, 2, 2, 5, 40]))
            output = rng.randint(1, 40)
            new = call(f"c{self.number}", user, run=run, output=output, calls=remaining)
            queue(feeder, new)
        elif action < 0.8:
            queued = self.queued
            if queued:
                wanted = next_by_plain_rule(feeder, self.active_runs, queued)
                chosen = feeder.peek(WORKERS)
                assert chosen.call_id == wanted
                feeder.dispatch(chosen.call_id, 0)
                self.active_runs.add(chosen.interaction_id)
                self.running[chosen.call_id] = chosen
        elif action < 0.92 and self.running:
            ended = self.running.pop(rng.choice(list(self.running)))
            if action < 0.83:
                feeder.requeue(ended)
            else:
                feeder.finish(ended.call_id, used(ended))
        elif action < 0.96 and self.queued:
            feeder.remove(rng.choice(list(self.queued)))
        elif self.active_runs:
            over = rng.choice(sorted(self.active_runs))
            self.active_runs.discard(over)
            feeder.interaction_ended(over)

    def restart(self):
        state = json.loads(json.dumps(self.feeder.snapshot()))
        calls = {**self.queued, **self.running}
        self.feeder = made(directory(**APPS), self.options)
        for each in calls.values():
            self.feeder._locality.register(each)
        self.feeder.restore(state, calls)


@given(st.integers(0, 2**32), st.sampled_from(["progress", "arrival"]))
def test_the_choice_equals_the_plain_rule(seed, run_priority):
    """The history has arrivals, returns, cancellations, ends of runs and restarts."""
    life = FeederHistory(seed, run_priority)
    for _ in range(150):
        life.step()
        if life.rng.random() < 0.04:
            life.restart()
    assert life.number > 30


@given(
    st.integers(0, 2**32),
    st.sampled_from(["progress", "arrival"]),
    st.sampled_from([0.0, 2.0, 8.0]),
    st.sampled_from([0.0, 1.0, 4.0]),
)
def test_counters_stay_within_the_slacks_and_one_call(
    seed, run_priority, locality_slack, interaction_slack
):
    """The bound of WSC is equal for any priority of runs."""
    rng = random.Random(seed)
    options = WscOptions(
        run_priority=run_priority,
        locality_slack=locality_slack,
        interaction_slack=interaction_slack,
    )
    feeder = made(directory(**APPS), options)
    cache(feeder, LONG)
    largest = 0.0
    for user in USERS:
        for number in range(40):
            output, own = rng.randint(1, 40), LONG[: rng.choice([0, 16, 64])]
            largest = max(largest, (100 + output) / 110)
            tokens = np.concatenate([own, TOKENS[: 100 - len(own)]])
            run = f"{user}-{rng.randrange(4)}"
            remaining = float(rng.choice([1, 3, 9, 50]))
            name = f"{user}{number}"
            queue(feeder, call(name, user, output=output, run=run, tokens=tokens, calls=remaining))
    for _ in range(60):
        serve(feeder)
        values = [feeder.counter(("t", user)) for user in USERS]
        assert max(values) - min(values) <= max(locality_slack, interaction_slack) + largest + 1e-9


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_bypasses_of_a_client_are_bounded(seed, max_bypass):
    """The bound holds however near the end every other run is."""
    rng = random.Random(seed)
    options = WscOptions(max_bypass=max_bypass, interaction_slack=math.inf, locality_slack=math.inf)
    feeder = made(directory(**APPS), options)
    cache(feeder, LONG)
    passed = {}
    for number in range(30):
        user = rng.choice(USERS)
        tokens = np.concatenate([LONG[: rng.choice([0, 96])], TOKENS[:40]])
        remaining = float(rng.choice([1, 2, 50]))
        new = call(f"{user}{number}", user, run=f"{user}r", tokens=tokens, calls=remaining)
        queue(feeder, new)
    while len(feeder):
        oldest = feeder._counters.least().queue
        first = next(iter(oldest))
        chosen = serve(feeder).call_id
        if chosen != first:
            passed[first] = passed.get(first, 0) + 1
    assert max(passed.values(), default=0) <= max_bypass


# --- one rule at a time ---------------------------------------------------------------------------


def active_runs(*runs, run_priority="progress", **options):
    """Return the next of the given runs: (user, calls to the end, counter, cached tokens, prompt)."""
    feeder = made(directory(**APPS), WscOptions(run_priority=run_priority, **options))
    cache(feeder, LONG)
    for user, remaining, _, cached, prompt in runs:
        feeder.begun_elsewhere(f"run-{user}")
        tokens = np.concatenate([LONG[:cached], TOKENS[: prompt - cached]])
        queue(feeder, call(user, user, run=f"run-{user}", calls=remaining, tokens=tokens))
    for user, _, counter, *_ in runs:
        charge(feeder, user, counter - feeder.counter(("t", user)))
    return feeder.peek(WORKERS).call_id


def test_the_run_nearest_its_end_precedes_the_least_served():
    runs = (("far", 20, 0.0, 0, 100), ("near", 2, 0.9, 0, 100), ("middle", 5, 0.5, 0, 100))
    assert active_runs(*runs) == "near"
    assert active_runs(*runs, run_priority="arrival") == "far"


def test_a_client_beyond_the_slack_is_never_chosen_for_its_progress():
    assert active_runs(("far", 20, 0.0, 0, 100), ("near", 1, 1.1, 0, 100)) == "far"
    assert (
        active_runs(("far", 20, 0.0, 0, 100), ("near", 1, 1.1, 0, 100), interaction_slack=2.0)
        == "near"
    )


def test_ties_are_resolved_by_service_then_arrival():
    assert active_runs(("more", 3, 0.5, 0, 100), ("less", 3, 0.2, 0, 100)) == "less"
    assert active_runs(("first", 3, 0.2, 0, 100), ("second", 3, 0.2, 0, 100)) == "first"


def test_an_inactive_run_has_no_progress_priority():
    feeder = made(directory(**APPS), WscOptions(run_priority="progress"))
    queue(feeder, call("new", "new", run="R", calls=1.0))
    queue(feeder, call("old", "old", run="O", calls=30.0))
    feeder.begun_elsewhere("O")
    assert feeder.peek(WORKERS).call_id == "old"


@pytest.mark.parametrize(
    ("cached", "prompt", "chosen"),
    [(0, 100, "cached"), (64, 100, "cached"), (96, 112, "cached"), (96, 110, "near")],
)
def test_a_run_replaces_a_match_only_if_about_as_much_is_cached(cached, prompt, chosen):
    """The match has 0.96 cached, the others 0, 0.64, 0.857 and 0.873: a tenth less suffices."""
    runs = (("cached", 20, 0.0, 96, 100), ("near", 2, 0.5, cached, prompt))
    assert active_runs(*runs) == chosen
    assert active_runs(*runs, run_priority="arrival") == "cached"


def test_by_arrival_a_match_yields_to_no_other_run():
    """The client of the match has had more service, and the other is almost as well cached."""
    runs = (("longest", 20, 0.3, 96, 100), ("near", 2, 0.0, 80, 88))
    assert active_runs(*runs) == "near"
    assert active_runs(*runs, run_priority="arrival") == "longest"


def test_progress_is_an_option():
    assert PAPER.run_priority == WscOptions().run_priority == "arrival"
    with pytest.raises(ValueError, match="run_priority is 'size'; allowed: progress, arrival"):
        WscOptions(run_priority="size")
