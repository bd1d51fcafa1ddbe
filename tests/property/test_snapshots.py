"""A dispatcher restored from a snapshot answers every later event as its original does."""

import json
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_events import RandomEvents, outcome
from virtual_cluster import make_call

from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.locality import waiting_index
from fairserve.scheduling.registry import SYSTEMS

OPTIONS = {
    "fairserve": [
        {},
        {"newcomers": "shared", "newcomer_slices": 2.0, "newcomer_growth_s": 60.0},
        {"feeder.weight_cap": 2.0, "high_watermark": 1.2},
        {"levels": "tenant > app > user", "immunity_rule": "profile"},
        {"resident_share": 0.3, "hold_s": 25.0},
    ],
    "rpm-20": [{"throttle.limit": 3}, {"throttle.limit": 3, "throttle.window": "fixed"}],
}
ALIKE = {"lcf", "vtc", "vtc-predict", "vtc-noisy", "vtc-oracle", "rr-lpm", "lpm", "d2lpm"}
"""Systems that differ from others at their workers only."""
CONFIGURATIONS = [
    (name, options) for name in SYSTEMS if name not in ALIKE for options in OPTIONS.get(name, [{}])
]


def made(name, options):
    return Dispatcher(SYSTEMS[name].with_options(options), seed=1)


def plain(dispatcher, now_s):
    return json.loads(json.dumps(dispatcher.snapshot(now_s), allow_nan=False))


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
@given(st.integers(0, 2**32), st.integers(0, 80))
@example(12, 53)  # before any run was refused
def test_a_restored_dispatcher_answers_like_its_original(name, options, seed, before):
    source = RandomEvents(random.Random(seed))
    original = made(name, options)
    for event in source.begin():
        source.took(original.handle(event, source.now_s))
    for _ in range(before):
        commands = outcome(original, source.next(), source.now_s)
        source.took(commands if isinstance(commands, list) else ())
    restored = made(name, options)
    restored.restore(plain(original, source.now_s), source.now_s)
    assert plain(restored, source.now_s) == plain(original, source.now_s)
    for _ in range(50):
        event = source.next()
        commands = outcome(original, event, source.now_s)
        assert outcome(restored, event, source.now_s) == commands, event
        source.took(commands if isinstance(commands, list) else ())
    assert plain(restored, source.now_s) == plain(original, source.now_s)


def test_a_restored_dispatcher_visits_the_same_calls_of_a_busy_worker(monkeypatch):
    """More sessions wait for ``w0`` than a selection for ``w1`` visits, known there in another order."""
    monkeypatch.setattr(waiting_index, "MOST_WALKS", 2)
    original, shared = made("fairserve", {}), tuple(range(1, 9))
    sessions = [(*shared, *range(1000 * n, 1000 * n + 8)) for n in range(1, 9)]

    def call(name, keys):
        tokens = np.zeros(16 * len(keys) + 1, np.uint32)
        return ev.CallArrived(make_call(name, user=name, tokens=tokens, block_keys=keys))

    for worker in ("w0", "w1"):
        original.handle(ev.WorkerJoined(worker, 4000), 0.0)
        original.handle(ev.WorkerCacheReset(worker, True), 0.0)
    for number in range(2):
        original.handle(call(f"busy {number}", range(100 * number + 100, 100 * number + 120)), 0.0)
    original.handle(ev.WorkerCached("w1", None, shared), 0.0)
    original.handle(call("first", range(50, 58)), 0.0)
    for session in sessions[4:]:
        original.handle(ev.WorkerCached("w0", None, session), 0.0)
    for number, session in enumerate(sessions):
        original.handle(call(f"session {number}", session), 0.0)
    for session in sessions[:4]:
        original.handle(ev.WorkerCached("w0", None, session), 0.0)
    restored = made("fairserve", {})
    restored.restore(plain(original, 0.0), 0.0)
    started = ev.CallStarted("busy 1", 0)
    commands = original.handle(started, 0.0)
    assert commands[0].worker_id == "w1"
    assert restored.handle(started, 0.0) == commands
