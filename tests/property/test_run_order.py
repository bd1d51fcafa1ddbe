"""WSC orders calls within a run by the longest path to its end, and changes nothing between runs."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsc_feeder import LONG, TOKENS, WORKERS, cache, call, directory, made, queue, serve, used

from fairserve.interactions.call import call_from_plain, call_to_plain
from fairserve.scheduling.feeders.wsc_options import PAPER, WscOptions

APPS = {"app": (100, 10)}
RUNS = 3
"""Number of runs of each user."""


def cached_prompt(blocks):
    """Return a prompt of 100 tokens, the first ``blocks`` blocks of which are those of LONG."""
    return np.concatenate([LONG[: 16 * blocks], TOKENS[: 100 - 16 * blocks]])


class FeederHistory:
    """A feeder with calls that arrive, are dispatched, return, end and are cancelled."""

    def __init__(self, seed, ways, *, run_order="critical_path", cached=True):
        self.rng = random.Random(seed)
        self.ways, self.cached, self.number = ways, cached, 0
        self.options = {
            "interaction_slack": self.rng.choice([0, 1, 3]),
            "locality_slack": self.rng.choice([0, 2, 8]) if cached else 0,
            "max_bypass": self.rng.choice([0, 1, 4]),
            "interaction_priority": self.rng.random() < 0.5,
        }
        self.feeder = made(directory(**APPS), WscOptions(run_order=run_order, **self.options))
        self.running = {}
        self.chosen = None

    @property
    def waiting(self):
        return list(self.feeder.waiting())

    def step(self):
        """Make one event; ``chosen`` is the call that it dispatched, if any."""
        rng, feeder, self.chosen = self.rng, self.feeder, None
        action, lot = rng.random(), rng.random()
        if action < 0.42:
            self.number += 1
            user, run = rng.choice("abc"), rng.randrange(RUNS + 1)
            tokens = cached_prompt(rng.choice([0, 0, 2, 4, 6]) if self.cached else 0)
            run_id = f"{user}-{run}" if run < RUNS else None
            left = float(rng.choice(self.ways))
            queue(feeder, call(f"c{self.number}", user, run=run_id, tokens=tokens, left=left))
        elif action < 0.7:
            self._dispatch(lot)
        elif action < 0.9 and self.running:
            ended = self.running.pop(list(self.running)[int(lot * len(self.running))])
            if action < 0.82:
                feeder.requeue(ended)
            else:
                feeder.finish(ended.call_id, used(ended))
                feeder._locality.forget(ended.call_id)
        elif action < 0.95 and len(feeder):
            feeder.remove(self.waiting[int(lot * len(feeder))].call_id)
        else:
            feeder.interaction_ended(f"{'abc'[int(lot * 3)]}-{self.number % RUNS}")

    def _dispatch(self, lot):
        workers = [["w0"], ["w1"], WORKERS][int(lot * 3)]
        chosen = self.feeder.peek(workers)
        if chosen is not None:
            self.chosen = chosen
            self.feeder.dispatch(chosen.call_id, 0)
            self.feeder._locality.placed(chosen, workers[0])
            self.running[chosen.call_id] = chosen

    def twin(self, run_order):
        """Return another feeder in the same state, restored from JSON."""
        feeder = made(directory(**APPS), WscOptions(run_order=run_order, **self.options))
        state = json.loads(
            json.dumps([self.feeder.snapshot(), self.feeder._locality.snapshot(0.0)])
        )
        known = [*self.waiting, *self.running.values()]
        plain = json.loads(json.dumps([call_to_plain(each) for each in known]))
        calls = {each["call_id"]: call_from_plain(each) for each in plain}
        queue(feeder, call("gone", "a", run="a-0", left=99.0))  # earlier state is discarded
        feeder._locality.restore(state[1], calls.values(), 0.0)
        feeder.restore(state[0], calls)
        return feeder


@given(st.integers(0, 2**32), st.sampled_from([0.0, 7.5]))
def test_with_equal_paths_the_order_is_that_of_arrival(seed, way):
    """Equal calls arrive at equal times, whatever is cached, returned or cancelled."""
    path, arrival = FeederHistory(seed, [way]), FeederHistory(seed, [way], run_order="arrival")
    for _ in range(150):
        path.step()
        arrival.step()
        assert (path.chosen and path.chosen.call_id) == (arrival.chosen and arrival.chosen.call_id)
        assert path.feeder.snapshot() == arrival.feeder.snapshot()
    assert path.number > 40


def longest_way(calls, run):
    return max(each.remaining_tokens for each in calls if each.interaction_id == run)


@given(st.integers(0, 2**32))
def test_the_longest_path_of_the_run_is_first(seed):
    """This holds for returning calls, after cancellations, and after a restore."""
    life = FeederHistory(seed, range(6), cached=False)
    dispatched = 0
    for _ in range(150):
        before = life.waiting
        life.step()
        if life.chosen is not None:
            dispatched += 1
            longest = longest_way(before, life.chosen.interaction_id)
            assert life.chosen.remaining_tokens == longest
        if life.rng.random() < 0.05:
            life.feeder = life.twin("critical_path")
    assert dispatched > 15


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(0, 2**32))
def test_the_next_run_is_that_of_arrival(seed):
    """In any state the run is the same; another of its calls needs as many cached tokens."""
    life = FeederHistory(seed, range(6))
    for _ in range(20):
        for _ in range(4):
            life.step()
        arrival, again = life.twin("arrival"), life.twin("critical_path")
        matched = life.feeder._locality.matched_tokens
        for workers in (["w0"], WORKERS):
            first, plain = life.feeder.peek(workers), arrival.peek(workers)
            restored = again.peek(workers)
            assert (first is None) == (plain is None) == (restored is None)
            if first is None:
                continue
            assert first.call_id == restored.call_id, "a snapshot keeps the order"
            run = plain.interaction_id
            assert first.interaction_id == run
            own = [each for each in life.waiting if each.interaction_id == run]
            longest = longest_way(own, run)
            if first.call_id != plain.call_id:
                assert first.remaining_tokens == longest > plain.remaining_tokens
            elif first.remaining_tokens < longest:  # it was chosen for its cached tokens
                best = min(
                    (each for each in own if each.remaining_tokens == longest),
                    key=lambda each: life.feeder._queued[each.call_id].seq,
                )
                assert matched(best, workers) < matched(first, workers)


@given(st.integers(0, 2**32), st.sampled_from([0.0, 2.0]), st.sampled_from([0.0, 1.0]))
def test_counters_stay_within_the_slacks_and_one_call(seed, locality_slack, interaction_slack):
    """The bound of WSC does not depend on the order within runs."""
    rng = random.Random(seed)
    options = WscOptions(locality_slack=locality_slack, interaction_slack=interaction_slack)
    feeder = made(directory(**APPS), options)
    cache(feeder, LONG)
    largest, users = 0.0, "abcd"
    for user in users:
        for number in range(40):
            output, tokens = rng.randint(1, 40), cached_prompt(rng.choice([0, 1, 4]))
            largest = max(largest, (100 + output) / 110)
            run = f"{user}-{rng.randrange(4)}"
            left = float(rng.randrange(100))
            new = call(f"{user}{number}", user, output=output, run=run, tokens=tokens, left=left)
            queue(feeder, new)
    for _ in range(60):
        serve(feeder)
        values = [feeder.counter(("t", user)) for user in users]
        assert max(values) - min(values) <= max(locality_slack, interaction_slack) + largest + 1e-9


# --- one rule at a time ---------------------------------------------------------------------------


def queued(calls, **options):
    """Return calls by id: user, run, path to the end, blocks that are cached at w0."""
    feeder = made(directory(**APPS), WscOptions(**options))
    cache(feeder, LONG)
    for call_id, (user, run, left, blocks) in calls.items():
        queue(feeder, call(call_id, user, run=run, left=left, tokens=cached_prompt(blocks)))
    return feeder


def test_the_oldest_call_yields_only_to_the_longest_of_its_run():
    calls = {
        "old": ("u", "R", 5, 0),
        "other": ("u", "S", 90, 0),
        "long": ("u", "R", 20, 0),
        "as-long": ("u", "R", 20, 0),
    }
    assert queued(calls).peek(WORKERS).call_id == "long"
    assert queued(calls, run_order="arrival").peek(WORKERS).call_id == "old"
    feeder = queued(calls)
    assert [serve(feeder).call_id for _ in calls] == ["long", "as-long", "old", "other"]


def test_the_first_active_run_yields_within_itself():
    feeder = queued({"begun": ("u", "R", 1, 0)})
    serve(feeder)
    for call_id, run, left in (("new", None, 0), ("old", "R", 5), ("long", "R", 20)):
        queue(feeder, call(call_id, "u", run=run, left=left))
    assert feeder.peek(WORKERS).call_id == "long"
    feeder.remove("long")
    assert feeder.peek(WORKERS).call_id == "old"


@pytest.mark.parametrize(("blocks", "first"), [(2, "hot"), (4, "long"), (6, "long")])
def test_a_match_yields_to_one_as_long(blocks, first):
    calls = {"cold": ("u", "S", 0, 0), "hot": ("v", "R", 5, 4), "long": ("v", "R", 20, blocks)}
    feeder = queued(calls)
    assert feeder.peek(["w0"]).call_id == first


def test_overtaking_within_a_run_is_no_bypass():
    ways = {f"c{number}": ("u", "R", float(number), 0) for number in range(6)}
    feeder = queued(ways, max_bypass=2)
    for _ in range(4):
        serve(feeder)
    assert feeder._queued["c0"].bypassed == 0
    for run, left, counts in (("R", 5.0, 1), ("R", 4.0, 1), ("R", 6.0, 0), ("S", 6.0, 1)):
        feeder = queued({"old": ("u", "R", 5.0, 0), "other": ("u", run, left, 0)})
        feeder.dispatch("other", 0)
        assert feeder._queued["old"].bypassed == counts


def test_after_max_bypass_the_longest_of_the_run_is_sent():
    calls = {"old": ("u", "R", 5, 0), "long": ("u", "R", 20, 0)}
    calls |= {f"hot{number}": ("v", None, 0, 6) for number in range(9)}
    feeder = queued(calls, max_bypass=3)
    assert [serve(feeder).call_id for _ in range(4)] == ["hot0", "hot1", "hot2", "long"]


def test_the_paper_does_not_order_a_run():
    assert PAPER.run_order == "arrival"
    with pytest.raises(ValueError, match="run_order is 'depth'; allowed: critical_path, arrival"):
        WscOptions(run_order="depth")


def test_a_long_queue_of_one_run_is_served_in_order():
    """All calls are served, once each, for any lookups in between."""
    rng = random.Random(1)
    ways = {f"c{number}": ("u", "R", float(rng.randrange(50)), 0) for number in range(600)}
    feeder = queued(ways)
    order = [serve(feeder).call_id for _ in ways]
    assert order == sorted(ways, key=lambda each: (-ways[each][2], int(each[1:])))
    assert not feeder._runs
    assert not feeder._ways
