"""With full windows, calls of active runs still reach the worker that has their context cached."""

import json

import numpy as np
import pytest

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile((StageProfile(400.0, 0.0, 16.0),), calls_per_interaction=4)
FAIRSERVE = SYSTEMS["fairserve"].with_options({"feed_window": 0.05})
WINDOW = 500
"""Tokens of the second window: five hundredths of the pool."""


def call(name, *, user, run, context, prompt=416):
    """Return a call; prompts with the same ``context`` number begin with the same 416 tokens."""
    tokens = np.arange(prompt, dtype=np.uint32) + 100_000 * context
    tokens[416:] += 1000 * (1 + sum(name.encode()))
    return Call(name, "t", "app", user, run, "m", prompt, 0, 64, token_ids=tokens)


class Cluster:
    """A dispatcher with one worker, driven by events."""

    def __init__(self, **options):
        self.dispatcher = Dispatcher(FAIRSERVE.with_options(options))
        self.sent = {}
        self.handle(ev.AppChanged("app", PROFILE, Limits()))
        self.handle(ev.WorkerJoined("w", WINDOW * 20))

    def handle(self, event):
        for command in self.dispatcher.handle(event, 0.0):
            if isinstance(command, ev.Admit):
                self.sent[command.call_id] = command.worker_id

    def arrive(self, name, **what):
        self.handle(ev.CallArrived(call(name, **what)))
        return name in self.sent

    def complete(self, name, prompt=416):
        self.handle(ev.CallStarted(name))
        self.handle(ev.CallEnded(name, "completed", TokenUsage(prompt, 0, 0, 16)))


def with_a_full_window(**options):
    """Return a cluster where run R completed a call, and two calls of others wait at the worker."""
    cluster = Cluster(**options)
    cluster.arrive("first", user="u", run="R", context=1)
    cluster.complete("first")
    assert cluster.arrive("x", user="v", run="X", context=2)
    assert cluster.arrive("y", user="w", run="Y", context=3)
    assert not cluster.arrive("z", user="x", run="Z", context=4), "the window is full"
    return cluster


def test_the_next_call_of_a_run_is_sent_to_its_context():
    cluster = with_a_full_window()
    assert cluster.arrive("second", user="u", run="R", context=1, prompt=448)
    assert "z" not in cluster.sent


def test_no_hit_is_admitted_without_the_option():
    cluster = with_a_full_window(hit_share=None)
    assert not cluster.arrive("second", user="u", run="R", context=1, prompt=448)


def test_no_hit_is_admitted_for_a_new_run():
    cluster = with_a_full_window()
    assert not cluster.arrive("other", user="u", run="S", context=1, prompt=448)


def test_no_hit_is_admitted_for_a_mostly_new_prompt():
    cluster = with_a_full_window()
    assert not cluster.arrive("long", user="u", run="R", context=1, prompt=600)


def test_no_hit_is_admitted_for_an_overserved_user():
    cluster = with_a_full_window(**{"feeder.locality_slack": 5.0})
    names = [f"hit-{number}" for number in range(8)]
    for name in names:
        cluster.arrive(name, user="u", run="R", context=1, prompt=448)
    # each costs 464 of 416 tokens: after the fifth its user is five calls ahead of z
    assert [name for name in names if name in cluster.sent] == names[:5]


def test_no_hit_is_admitted_to_a_worker_that_failed_the_call():
    cluster = with_a_full_window()
    assert cluster.arrive("second", user="u", run="R", context=1, prompt=448)
    del cluster.sent["second"]
    cluster.handle(ev.CallReturned("second"))
    cluster.arrive("third", user="u", run="R", context=1, prompt=448)
    assert "second" not in cluster.sent


def test_hits_fill_a_separate_window():
    cluster = with_a_full_window(**{"feeder.locality_slack": 100.0})
    names = [f"hit-{number}" for number in range(40)]
    for name in names:
        cluster.arrive(name, user="u", run="R", context=1, prompt=448)
    sent = [name for name in names if name in cluster.sent]
    each = 448 - 416 + 16  # to compute: the uncached tokens and the expected output
    assert len(sent) == -(-WINDOW // each)
    cluster.handle(ev.CallStarted(sent[0]))
    assert [name for name in names if name in cluster.sent] == [*sent, names[len(sent)]]
    assert "z" not in cluster.sent


def test_the_state_of_the_second_window_is_restored():
    cluster = with_a_full_window()
    for number in range(5):
        cluster.arrive(f"hit-{number}", user="u", run="R", context=1, prompt=448)
    state = json.loads(json.dumps(cluster.dispatcher.snapshot(0.0)))
    copy = Dispatcher(FAIRSERVE)
    copy.restore(state, 0.0)
    assert json.loads(json.dumps(copy.snapshot(0.0))) == state
    assert copy.first.worker_table.workers["w"].hit_tokens == 5 * 48
    for name in ("x", "y", *(f"hit-{number}" for number in range(5))):
        copy.handle(ev.CallStarted(name), 0.0)
    assert copy.first.worker_table.workers["w"].hit_tokens == 0


def test_a_share_out_of_range_is_rejected():
    with pytest.raises(ValueError, match="hit_share is 0; allowed: over 0, to 1, or null"):
        SYSTEMS["fairserve"].with_options({"hit_share": 0})
