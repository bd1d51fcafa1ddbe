"""Many simultaneous runs, cancelled, closed or abandoned, leave no state behind."""

import gc
import json
import random
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest
from virtual_cluster import make_call, prompt

from fairserve.interactions import errors
from fairserve.interactions.call import TokenUsage
from fairserve.interactions.tracking.tracker import Tracker, TrackerLimits
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS

CALLS = 20
PROMPTS = [prompt((seed, 48)) for seed in range(50)]


class Service:
    """A dispatcher with workers that end some of their calls at each step of a second."""

    def __init__(self, runs):
        self.runs = runs
        self.rng = random.Random(7)
        self.now_s = 0.0
        self.dispatcher = Dispatcher(SYSTEMS["fairserve"], reopen_grace_s=5)
        self.dispatcher.tracker = Tracker(
            TrackerLimits(remembered_runs=runs // 2, dormant_runs=runs // 4), reopen_grace_s=5
        )
        self.running, self.queued, self.ends, self.most_live = {}, set(), {}, 0
        for number in range(4):
            self.handle(ev.WorkerJoined(f"w{number}", 200_000))

    def handle(self, event):
        for command in self.dispatcher.handle(event, self.now_s):
            match command:
                case ev.Admit():
                    self.queued.discard(command.call_id)
                    self.running[command.call_id] = True
                case ev.CancelCall():
                    if command.worker_id is None:
                        self.queued.discard(command.call_id)
                    else:
                        self.end(command.call_id, "cancelled")
                case ev.InteractionEnded():
                    state = command.state
                    self.ends[state] = self.ends.get(state, 0) + 1

    def end(self, call_id, outcome="completed"):
        if self.running.pop(call_id, None):
            usage = TokenUsage(input_tokens=48, output_tokens=self.rng.randint(1, 8))
            self.handle(
                ev.CallEnded(call_id, outcome, usage, requested_tools=self.rng.random() < 0.1)
            )

    def wave(self, name):
        """Run all runs of a wave side by side, each with its calls in its own order."""
        left = {f"{name}-{number}": CALLS for number in range(self.runs)}
        while left:
            self.now_s += 1
            for run in self.rng.sample(sorted(left), min(len(left), self.runs // 5)):
                self.step(run, left)
            for call_id in self.rng.sample(sorted(self.running), len(self.running) * 3 // 4):
                self.end(call_id, self.rng.choice(["completed"] * 9 + ["failed"]))
            self.handle(ev.Tick())
            self.most_live = max(self.most_live, len(self.dispatcher.tracker))
        while self.running:
            for call_id in list(self.running):
                self.end(call_id)
        for _ in range(20):
            self.now_s += 60
            self.handle(ev.Tick())

    def step(self, run, left):
        number = CALLS - left[run]
        fate = self.rng.random()
        if number and fate < 0.01:
            self.close(run, cancel=fate < 0.005)
            del left[run]
            return
        call = make_call(
            f"{run}/{number}",
            run=run,
            user=f"u{int(run.rpartition('-')[2]) % 40}",
            tokens=self.rng.choice(PROMPTS),
            final=number == CALLS - 1 and fate < 0.5,
        )
        self.queued.add(call.call_id)
        self.handle(ev.CallArrived(call))
        if fate > 0.98:
            self.handle(ev.CancelRequested(call.call_id, self.rng.choice(["cancelled", "expired"])))
        left[run] -= 1
        if not left[run]:
            del left[run]
            if fate >= 0.75 and not call.final:
                self.close(run, cancel=False)

    def close(self, run, *, cancel):
        try:
            self.handle(ev.InteractionClosed(run, cancel=cancel))
        except errors.InteractionError:
            assert self.dispatcher.tracker.get(run) is None, "it has ended already"


def held_by(root):
    """Return the number of objects reachable from ``root``, without those of code.

    Counting all objects of the process would include foreign ones: a thread of an earlier test made
    hundreds.
    """
    code = (type, ModuleType, FunctionType, BuiltinFunctionType)
    seen, found = {id(root)}, [root]
    while found:
        for each in gc.get_referents(found.pop()):
            if id(each) not in seen and not isinstance(each, code):
                seen.add(id(each))
                found.append(each)
    return len(seen)


@pytest.mark.parametrize("runs", [150, pytest.param(1000, marks=pytest.mark.deep)])
def test_many_simultaneous_runs_leave_no_state(runs):
    service = Service(runs)
    objects, sizes = [], []
    for wave in range(3):
        service.wave(f"r{wave}")
        state = service.dispatcher.snapshot(service.now_s)
        tracker = state["tracker"]
        assert (state["live"], tracker["runs"], tracker["dormant"]) == ([], [], [])
        assert (service.queued, service.dispatcher.load()[0]) == (set(), 0)
        assert all(len(each.feeder) == 0 for each in service.dispatcher.pools.values())
        assert len(tracker["ended"]) == runs // 2
        sizes.append(len(json.dumps(state)))
        del state, tracker
        objects.append(held_by(service.dispatcher))
    assert service.most_live > 0.9 * runs
    assert set(service.ends) == {"complete", "cancelled", "aborted", "expired"}
    assert sum(service.ends.values()) >= 3 * runs, "runs that reopen end twice"

    assert abs(objects[2] - objects[1]) < runs, objects
    assert abs(sizes[2] - sizes[1]) < 0.02 * sizes[1], sizes
