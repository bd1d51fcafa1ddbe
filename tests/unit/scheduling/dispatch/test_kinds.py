"""Test calls that only some kinds of worker can serve, with workers of several kinds for one model."""

import json

import pytest
from virtual_cluster import hash_of, make_call, prompt

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile(stages=(StageProfile(64, 0, 8),), calls_per_interaction=1, idle_timeout_s=30.0)
PLAIN = frozenset({"plain"})
RICH = frozenset({"rich"})


class Mixed:
    """A plain worker ``p`` and a rich one ``r``; one call of 64 tokens fills the window of each."""

    def __init__(self, system):
        self.dispatcher = Dispatcher(SYSTEMS[system].with_options({"feed_window": 0.05}), seed=7)
        self.where = {}
        self.event(ev.AppChanged("app", PROFILE, Limits()))
        for worker_id, kind in (("p", "plain"), ("r", "rich")):
            self.event(ev.WorkerJoined(worker_id, 1000, kind=kind))

    def event(self, event):
        for command in self.dispatcher.handle(event, 0.0):
            if isinstance(command, ev.Admit):
                self.where[command.call_id] = command.worker_id

    def call(self, call_id, kinds=frozenset(), user="u"):
        tokens = prompt((hash_of(call_id), 64))
        self.event(ev.CallArrived(make_call(call_id, user=user, tokens=tokens, kinds=kinds)))

    def end(self, call_id):
        self.event(ev.CallEnded(call_id, "completed", TokenUsage(64, 0, 0, 8)))


@pytest.fixture(params=["fcfs", "vtc", "fairserve", "central-dlpm", "d2lpm"])
def mixed(request):
    return Mixed(request.param)


def test_a_call_is_sent_to_a_worker_that_can_serve_it(mixed):
    for number in range(5):
        mixed.call(f"plain-{number}", PLAIN)
        mixed.call(f"rich-{number}", RICH)
        mixed.call(f"any-{number}", PLAIN | RICH)
        for kind in ("plain", "rich", "any"):
            mixed.end(f"{kind}-{number}")
    assert {mixed.where[f"plain-{number}"] for number in range(5)} == {"p"}
    assert {mixed.where[f"rich-{number}"] for number in range(5)} == {"r"}


def test_a_call_waiting_for_its_kind_delays_no_other(mixed):
    mixed.event(ev.WorkerLost("r"))
    mixed.call("rich", RICH)
    mixed.call("other", user="v")
    assert mixed.where == {"other": "p"}
    mixed.event(ev.WorkerJoined("r", 1000, kind="rich"))
    assert mixed.where["rich"] == "r"


def test_a_worker_without_a_kind_serves_every_call(mixed):
    mixed.event(ev.WorkerLost("r"))
    mixed.event(ev.WorkerJoined("r", 1000))
    mixed.call("rich", RICH)
    assert mixed.where == {"rich": "r"}


def test_kinds_survive_a_snapshot(mixed):
    mixed.event(ev.WorkerLost("r"))
    mixed.call("rich", RICH)
    state = json.loads(json.dumps(mixed.dispatcher.snapshot(0.0)))
    mixed.dispatcher.restore(state, 0.0)
    mixed.event(ev.WorkerJoined("r", 1000, kind="rich"))
    mixed.call("plain", PLAIN)
    assert mixed.where == {"rich": "r", "plain": "p"}
