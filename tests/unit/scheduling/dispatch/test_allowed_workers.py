"""Test calls that may run at some workers or kinds of worker only, or started at another worker.

``tests/unit/interactions/test_call.py`` and ``tests/property/test_snapshots.py`` restore such calls.
"""

import pytest
from virtual_cluster import hash_of, make_call, prompt

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.errors import UnknownCallError, UnknownWorkerError
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile(stages=(StageProfile(64, 0, 8),), calls_per_interaction=1, idle_timeout_s=30.0)
ALL = frozenset({"w0", "w1", "w2"})
PLAIN, RICH = frozenset({"vllm"}), frozenset({"rich"})


class Cluster:
    """Three workers; one call of 64 tokens fills the window of each."""

    def __init__(self, system):
        self.dispatcher = Dispatcher(SYSTEMS[system].with_options({"feed_window": 0.05}), seed=7)
        self.where = {}
        self.event(ev.AppChanged("app", PROFILE, Limits()))
        for worker_id in sorted(ALL):
            self.join(worker_id)

    def event(self, event):
        for command in self.dispatcher.handle(event, 0.0):
            if isinstance(command, ev.Admit):
                self.where[command.call_id] = command.worker_id

    def join(self, worker_id, kind="vllm"):
        self.event(ev.WorkerJoined(worker_id, 1000, kind=kind))

    def call(self, call_id, *workers, user="u", **more):
        tokens = prompt((hash_of(call_id), 64))
        call = make_call(call_id, user=user, tokens=tokens, workers=frozenset(workers), **more)
        self.event(ev.CallArrived(call))

    def end(self, call_id, **usage):
        self.event(ev.CallEnded(call_id, "completed", TokenUsage(64, 0, 0, 8)))

    def loads(self):
        return {
            name: (worker.calls, worker.demand_tokens, worker.waiting_tokens)
            for name, worker in self.dispatcher.first.worker_table.workers.items()
        }


@pytest.fixture(params=["fcfs", "vtc", "fairserve", "central-dlpm", "d2lpm", "preble"])
def cluster(request):
    return Cluster(request.param)


@pytest.mark.parametrize("background", [False, True])
def test_a_call_runs_at_an_allowed_worker_only(cluster, background):
    for number in range(9):
        allowed = f"w{number % 3}"
        cluster.call(f"c{number}", allowed, background=background)
        assert cluster.where[f"c{number}"] == allowed
        cluster.end(f"c{number}")
    cluster.call("two", "w1", "w2", background=background)
    assert cluster.where["two"] in ("w1", "w2")


def test_a_call_waiting_for_its_workers_delays_no_other(cluster):
    cluster.call("first", "w0")
    cluster.call("second", "w0")
    cluster.call("other", user="v")
    assert "second" not in cluster.where
    assert cluster.where["other"] in ("w1", "w2")
    cluster.end("first")
    assert cluster.where["second"] == "w0"


def test_unknown_workers_are_waited_for(cluster):
    cluster.call("late", "w9")
    assert "late" not in cluster.where
    cluster.join("w9")
    assert cluster.where == {"late": "w9"}


def test_kinds_and_workers_restrict_together(cluster):
    cluster.join("other", "openai")
    cluster.call("both", "w1", "other", kinds=frozenset({"openai"}))
    assert cluster.where == {"both": "other"}


def test_a_failed_call_is_retried_at_its_allowed_workers(cluster):
    cluster.call("call", "w0", "w1")
    first = cluster.where.pop("call")
    cluster.event(ev.CallReturned("call"))
    assert {first, cluster.where["call"]} == {"w0", "w1"}
    del cluster.where["call"]
    cluster.event(ev.CallReturned("call"))
    assert cluster.where["call"] in ("w0", "w1"), "it has failed at both"


def test_a_call_is_sent_to_a_worker_of_its_kinds(cluster):
    cluster.join("rich", "rich")
    for number in range(5):
        cluster.call(f"plain-{number}", kinds=PLAIN)
        cluster.call(f"rich-{number}", kinds=RICH)
        cluster.call(f"any-{number}", kinds=PLAIN | RICH)
        assert cluster.where[f"plain-{number}"] in ALL
        assert cluster.where[f"rich-{number}"] == "rich"
        for kind in ("plain", "rich", "any"):
            cluster.end(f"{kind}-{number}")


def test_a_call_waiting_for_its_kind_delays_no_other(cluster):
    cluster.call("rich", kinds=RICH)
    cluster.call("other", user="v")
    assert cluster.where.keys() == {"other"}
    cluster.join("rich", "rich")
    assert cluster.where["rich"] == "rich"


def test_a_worker_without_a_kind_serves_every_call(cluster):
    cluster.join("any", "")
    cluster.call("rich", kinds=RICH)
    assert cluster.where == {"rich": "any"}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_moved_call_counts_at_its_new_worker_only(cluster, started, background):
    cluster.call("call", "w0", background=background)
    if started:
        cluster.event(ev.CallStarted("call"))
    before = cluster.dispatcher.load()
    cluster.event(ev.CallMoved("call", "w1"))
    assert cluster.dispatcher.load() == before or not started
    assert cluster.loads()["w0"] == (0, 0, 0)
    assert cluster.loads()["w1"][0] == 1
    assert cluster.loads()["w1"][2] == 0, "it has started"
    cluster.event(ev.TokensDecoded((("call", 5),)))
    cluster.end("call")
    assert set(cluster.loads().values()) == {(0, 0, 0)}
    assert set(cluster.dispatcher.first.router.snapshot().get("loads", {}).values()) <= {0}


def test_a_moved_call_leaves_its_place_to_the_next(cluster):
    cluster.call("first", "w0")
    cluster.call("second", "w0")
    cluster.event(ev.CallMoved("first", "w1"))
    assert cluster.where["second"] == "w0"


def test_a_call_moves_to_workers_that_take_calls_only(cluster):
    cluster.call("call", "w0")
    cluster.event(ev.WorkerDraining("w1"))
    for worker_id in ("w9", "w1"):
        with pytest.raises(UnknownWorkerError):
            cluster.event(ev.CallMoved("call", worker_id))
    with pytest.raises(UnknownCallError):
        cluster.event(ev.CallMoved("nobody", "w1"))
    cluster.event(ev.CallMoved("call", "w0"))
    assert cluster.loads()["w0"][0] == 1, "it stays where it is"
