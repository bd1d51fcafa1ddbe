"""Overload is work that waits for capacity, whichever is scarce; retries follow the expected wait."""

import json

import pytest

from fairserve.interactions.call import Call, TokenUsage
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.backlog import LONGEST_WAIT_S, WAIT_S, Backlog
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

SLOTS = 4
WAITING = 12


class SlotBound:
    """A worker with a large cache that runs ``SLOTS`` calls of a second; the next ones wait at it."""

    def __init__(self):
        self.dispatcher = Dispatcher(SYSTEMS["fairserve"].with_options({"feed_window": 1e-6}))
        self.now_s, self.number, self.refused = 0.0, 0, []
        self.at_worker, self.running = [], []
        self.take(
            ev.AppChanged("app", self.dispatcher.directory.profile("app"), Limits(user_rpm=5))
        )
        self.take(ev.WorkerJoined("w", 10**6))

    @property
    def pool(self):
        return self.dispatcher.first

    def take(self, event):
        for command in self.dispatcher.handle(event, self.now_s):
            if isinstance(command, ev.Admit):
                self.at_worker.append(command.call_id)
            elif isinstance(command, ev.Refuse):
                self.refused.append(command)
        while self.at_worker and len(self.running) < SLOTS:
            self.running.append(self.at_worker.pop(0))
            self.take(ev.CallStarted(self.running[-1]))

    def arrive(self, user=None):
        self.number += 1
        user = user or f"u{self.number}"
        run = f"r{self.number}"
        call = Call(f"c{self.number}", "t", "app", user, run, "m", 100, 0, 20, single=True)
        self.take(ev.CallArrived(call))

    def second(self):
        self.now_s += 1.0
        done, self.running = self.running, []
        for call_id in done:
            self.take(ev.CallEnded(call_id, "completed", TokenUsage(100, 0, 0, 20)))
        self.take(ev.Tick())

    def steadily(self, seconds):
        """Let as many calls arrive as end, with ``WAITING`` more in the queue."""
        for _ in range(seconds):
            while len(self.pool.feed) < WAITING:
                self.arrive()
            self.second()
        while len(self.pool.feed) < WAITING:
            self.arrive()
        self.pool.update_overload()


def test_a_queue_before_full_slots_is_an_overload():
    world = SlotBound()
    world.steadily(12)
    demand, capacity = world.pool.worker_table.load(world.pool.feed.demand_tokens)
    assert demand < 0.01 * capacity, "the cache is nearly empty"
    demand, capacity = world.pool.load()
    assert 1 + WAITING / (SLOTS + 1) <= demand / capacity <= 1 + WAITING / SLOTS
    assert world.dispatcher.overloaded


def test_a_burst_is_none():
    world = SlotBound()
    for _ in range(2 * WAITING):
        world.arrive()
    for _ in range(int(WAIT_S) - 1):
        world.second()
        assert len(world.pool.feed)
        assert not world.dispatcher.overloaded
        assert world.pool.expected_wait_s == 0.0


def test_a_queue_that_was_empty_in_between_is_none():
    world = SlotBound()
    for _ in range(10):
        for _ in range(SLOTS + 1):
            world.arrive()
        assert not len(world.pool.feed)
        for _ in range(WAITING):
            world.arrive()
        for _ in range(WAITING // SLOTS + 2):
            world.second()
    assert not world.dispatcher.overloaded


def test_the_expected_wait_is_that_of_the_queue():
    world = SlotBound()
    world.steadily(20)
    assert world.pool.expected_wait_s == pytest.approx(WAITING / SLOTS, rel=0.1)


def test_the_overload_ends_with_the_queue():
    world = SlotBound()
    world.steadily(12)
    for _ in range(WAITING):
        world.second()
    assert not world.dispatcher.overloaded
    assert world.pool.expected_wait_s == 0.0


def test_a_rejected_client_may_come_back_when_the_queue_is_expected_to_be_served():
    world = SlotBound()
    world.steadily(12)
    world.pool.feed.backlog.sent_tokens = 0
    world.pool.feed.backlog._rate /= 100.0  # the workers have become slow
    expected_s = world.pool.expected_wait_s
    assert expected_s > 60.0
    for _ in range(8):
        world.arrive("flood")
    (refused,) = {each.decision.reason for each in world.refused}
    assert refused == "overloaded_user_limit"
    assert min(each.decision.retry_after_s for each in world.refused) >= expected_s


def test_nothing_that_leaves_means_to_wait_as_long_again():
    backlog = Backlog()
    for second in range(40):
        backlog.tick(float(second), blocked=True, used_tokens=100)
    assert backlog.waits
    assert 35.0 <= backlog.expected_wait_s(10) <= 40.0
    backlog.tick(2 * LONGEST_WAIT_S, blocked=True, used_tokens=100)
    assert backlog.expected_wait_s(10) == LONGEST_WAIT_S


def test_the_state_is_restored():
    world = SlotBound()
    world.steadily(9)
    backlog = world.pool.feed.backlog
    copy = Backlog()
    copy.restore(json.loads(json.dumps(backlog.snapshot(world.now_s))), world.now_s)
    for step in range(3):
        for each in (backlog, copy):
            each.tick(world.now_s + step, blocked=True, used_tokens=50)
        assert copy.snapshot(world.now_s) == backlog.snapshot(world.now_s)
    assert copy.waits
    assert copy.expected_wait_s(1000) == backlog.expected_wait_s(1000) > 0
    assert WAIT_S < 9
