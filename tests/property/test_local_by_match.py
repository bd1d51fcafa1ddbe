"""Longest prefix match equals a plain sort, and Preble's groups get their shares."""

import random
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_worker import FixedCache, OneWorker

from fairserve.benchmarks.policies.preble_groups import (
    PrebleGroups,
    PrebleGroupsOptions,
    group_of,
)
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.lpm import Lpm, LpmOptions


class Queue:
    """Random arrivals, ends, preemptions and cache changes at one scheduler; lists waiting calls."""

    def __init__(self, scheduler, seed):
        self.scheduler, self.rng, self.cache = scheduler, random.Random(seed), FixedCache()
        self.waiting, self.running, self.numbers = {}, {}, 0

    def add(self, prompt, matched):
        self.numbers += 1
        call = LocalCall(f"x{self.numbers}", f"c{self.numbers % 3}", prompt, 1)
        self.cache.matches[call.call_id] = matched
        self.scheduler.add(call)
        self.waiting[call.call_id] = call

    def change(self):
        """Make a random event between two passes."""
        rng = self.rng
        for _ in range(rng.randrange(6)):
            self.add(prompt := rng.randint(1, 50), rng.randrange(prompt))
        if self.waiting and rng.random() < 0.3:
            call_id = rng.choice(list(self.waiting))
            del self.waiting[call_id]
            self.scheduler.finish(call_id)
        if self.running and rng.random() < 0.3:
            call_id = rng.choice(list(self.running))
            self.waiting[call_id] = self.running.pop(call_id)
            self.scheduler.requeue(call_id)
        if rng.random() < 0.3:
            for call_id, call in self.waiting.items():
                if rng.random() < 0.5:
                    self.cache.change(call_id, rng.randrange(call.prompt_tokens))

    def take(self, call):
        self.running[call.call_id] = self.waiting.pop(call.call_id)
        self.scheduler.accept(self.cache.matched_tokens(call))


@given(st.integers(0, 2**32), st.sampled_from(["stop", "skip"]))
def test_lpm_is_a_sort_by_match_and_arrival(seed, when_full):
    queue = Queue(Lpm(LpmOptions(when_full=when_full)), seed)
    for _ in range(25):
        queue.change()
        expected = sorted(
            queue.waiting.values(), key=lambda c: (-queue.cache.matched_tokens(c), c.arrival)
        )
        queue.scheduler.start_pass(queue.cache)
        for call in expected:
            assert queue.scheduler.peek() is call
            if queue.rng.random() < 0.6:
                queue.take(call)
            else:
                queue.scheduler.skip()
                if when_full == "stop":
                    break
        assert queue.scheduler.peek() is None


@pytest.mark.parametrize("scheduler", [Lpm, PrebleGroups, Dlpm])
def test_only_affected_calls_are_matched_again(scheduler):
    queue = Queue(scheduler(), 1)
    for _ in range(40):
        queue.add(50, 20)
    for new, changed, asked in ((0, 0, 40), (0, 0, 0), (3, 0, 3), (2, 4, 6), (0, 4, 4)):
        for _ in range(new):
            queue.add(50, 10)
        for call_id in list(queue.waiting)[:changed]:
            queue.cache.change(call_id, 7)
            queue.cache.change(call_id, 9)
        queue.cache.asked = 0
        queue.scheduler.start_pass(queue.cache)
        queue.scheduler.peek()
        queue.scheduler.skip()
        assert queue.cache.asked == asked


def test_groups_are_tenths_of_the_hit_share():
    for prompt in (1, 7, 10, 99, 1000, 4096):
        for matched in range(prompt + 1):
            exact = max(0, ceil(10 * Fraction(matched, prompt)) - 1)
            assert group_of(prompt, matched) == exact
    assert [group_of(100, matched) for matched in (0, 1, 10, 11, 63, 90, 91, 100)] == [
        0, 0, 0, 1, 6, 8, 9, 9
    ]  # fmt: skip
    assert group_of(0, 0) == 0
    assert group_of(10, 12) == 9


@given(st.integers(0, 2**32), st.integers(0, 60))
def test_each_group_gets_at_most_its_places_in_a_pass(seed, per_pass):
    """Groups from 9 to 0 get at most (g + 1) * 10 each, FCFS within, like the rule written out."""
    queue = Queue(PrebleGroups(), seed)
    for _ in range(4):
        for _ in range(per_pass):
            queue.add(100, queue.rng.choice([0, 0, 0, 5, 15, 95, 99]))
        queue.change()
        expected = []
        for group in range(9, -1, -1):
            members = [
                call
                for call in queue.waiting.values()
                if group_of(call.prompt_tokens, queue.cache.matched_tokens(call)) == group
            ]
            expected += sorted(members, key=lambda c: c.arrival)[: 10 * (group + 1)]
        queue.scheduler.start_pass(queue.cache)
        taken = []
        while (call := queue.scheduler.peek()) is not None:
            taken.append(call)
            queue.take(call)
        assert taken == expected


def test_full_groups_admit_550_calls():
    queue = Queue(PrebleGroups(), 0)
    for number in range(3000):
        queue.add(100, 10 * (number % 10) + 5)
    queue.scheduler.start_pass(queue.cache)
    taken = [0] * 10
    while (call := queue.scheduler.peek()) is not None:
        taken[group_of(100, queue.cache.matched_tokens(call))] += 1
        queue.take(call)
    assert taken == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


@pytest.mark.parametrize("options", [PrebleGroupsOptions(), PrebleGroupsOptions("skip")])
def test_calls_without_a_hit_are_delayed_and_not_starved(options):
    """There are always more calls with a hit than a step admits, yet the others get their places."""
    worker = OneWorker(PrebleGroups(options), 10**9, max_batch=10**9)
    cold = [worker.add("cold", 100, 1) for _ in range(25)]
    for _ in range(3):
        for _ in range(200):
            worker.add("warm", 100, 1, matched=95)
        worker.step()
    assert set(cold) <= set(worker.order)


def test_invalid_options_are_rejected():
    for options in (LpmOptions, PrebleGroupsOptions):
        with pytest.raises(ValueError, match="when_full is 'wait'"):
            options(when_full="wait")
