"""Cost of the tracker per call, and its memory, with very many runs.

In the steady state each run grows to its own size, at most 60 calls, and is closed; another
replaces it. So there are runs of every age, and long ones are more frequent, since they last
longer. A call attaches, is accepted, and ends; it names its parents, continues a conversation, or
follows by time. Memory is the allocator's count for a tracker that grew in the same way, including
the ids of its calls, which are as long as the platform's; it remembers no ended runs.
"""

from __future__ import annotations

import random
from collections import Counter

from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns, traced_memory
from fairserve.interactions.call import Call
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.tracking.tracker import Tracker, TrackerLimits

TIME = "tracker_us_per_call"
BYTES = "tracker_bytes_per_call"

FIRST, NAMED, CONTINUED, TIMED = KINDS = ("first", "named", "continued", "timed")
"""Kinds of calls: the first of its run, one that names its parents (possibly none), one that
continues a conversation, and one without these, which follows the calls that have ended."""

MOST_CALLS = 60
SIZES = range(1, MOST_CALLS + 1)
PROFILE = AppProfile((StageProfile(1000, 0, 200),), calls_per_interaction=MOST_CALLS)
APP = "app_01hq3z5m8k2v9x4c7b1n6t0w5y"


class Traffic:
    """A tracker with many runs, and calls of these runs."""

    def __init__(self, runs: int, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a workload
        self.tracker = Tracker(TrackerLimits(live_runs=10_000_000))
        sizes = self._random.choices(SIZES, weights=SIZES, k=runs)  # a run exists while it grows
        self._runs = [self._new_run(size) for size in sizes]
        self.kinds: Counter[str] = Counter()
        """Number of calls made, by kind."""

    @property
    def calls(self) -> int:
        """Return the number of calls of the live runs."""
        return sum(len(calls) for _, calls, _ in self._runs)

    def _new_run(self, size: int) -> tuple[str, list[str], int]:
        """Return a run's id, the ids of its calls, and the size to which it grows."""
        return f"{APP}/{self._random.getrandbits(128):032x}", [], size

    def grow(self) -> None:
        """Bring every run to an age that it may have in the steady state."""
        for name, calls, size in self._runs:
            for _ in range(self._random.randrange(size)):
                self._live(*self._call(name, calls))

    def _call(self, run: str, calls: list[str]) -> tuple[Call, tuple[int, ...]]:
        """Return the next call of a run, and the key of its answer."""
        kind = self._kind() if calls else FIRST
        self.kinds[kind] += 1
        parents = None
        if kind == NAMED:
            parents = tuple(self._random.sample(calls, min(len(calls), self._random.randint(0, 3))))
        call = Call(
            call_id=f"{run}/call_{self._random.getrandbits(104):026x}",
            tenant="tenant",
            app=APP,
            user="user",
            interaction_id=run,
            model="",
            input_tokens=1000,
            system_tokens=0,
            max_output_tokens=200,
            parents=parents,
        )
        # An agent's turn has the keys of its history: one more than the number of earlier turns.
        if kind == CONTINUED:
            call.history = tuple(hash((run, n)) & (2**64 - 1) for n in range(len(calls), 0, -1))
        key = hash((run, len(calls) + 1)) & (2**64 - 1)
        calls.append(call.call_id)
        return call, (key,)

    def _kind(self) -> str:
        share = self._random.random()
        return NAMED if share < 0.3 else TIMED if share < 0.6 else CONTINUED

    def _live(self, call: Call, answers: tuple[int, ...]) -> None:
        attachment = self.tracker.attach(call, PROFILE, 0.0)
        self.tracker.accept(call, attachment, 0.0)
        self.tracker.finish(call, "completed", 1, PROFILE, 0.0, continuation_keys=answers)

    def measured(self, calls: int) -> float:
        """Return the microseconds per call, over this many calls to random runs."""
        arrived, full = [], []
        for _ in range(calls):
            at = self._random.randrange(len(self._runs))
            name, known, size = self._runs[at]
            arrived.append(self._call(name, known))
            if len(known) >= size:
                full.append(name)
                self._runs[at] = self._new_run(self._random.choice(SIZES))
        live = self._live
        began_ns = cpu_ns()
        for call, answers in arrived:
            live(call, answers)
        for name in full:
            self.tracker.close(name, cancel=False)
        return (cpu_ns() - began_ns) / 1000 / calls


class TrackerTime:
    """Time of a call with very many runs, and with a hundredth of them."""

    def __init__(self, runs: int, calls: int, seed: int = 1) -> None:
        self._calls = calls
        self._many, self._few = Traffic(runs, seed), Traffic(max(1, runs // 100), seed)
        for traffic in (self._many, self._few):
            traffic.grow()

    def round(self) -> Reading:
        """Measure both, one after the other."""
        self._many.kinds.clear()
        many, few = self._many.measured(self._calls), self._few.measured(self._calls)
        details = {
            "runs": float(len(self._many.tracker)),
            "live_calls": float(self._many.calls),
            "with_a_hundredth_of_the_runs_us": few,
            "growth": many / few,
        }
        details |= {f"{kind}_calls": float(self._many.kinds[kind]) for kind in KINDS}
        return Reading({TIME: many}, details)


class TrackerMemory:
    """Memory of one tracker per round, each with another seed."""

    def __init__(self, runs: int, seed: int = 1) -> None:
        self._runs, self._seed = runs, seed

    def round(self) -> Reading:
        """Grow one tracker and measure its memory."""
        self._seed += 1
        with traced_memory() as kept_bytes:
            traffic = Traffic(self._runs, self._seed)
            traffic.grow()
            calls, tracker = traffic.calls, traffic.tracker
            del traffic
            allocated = kept_bytes()
        details = {"runs": float(len(tracker)), "live_calls": float(calls)}
        return Reading({BYTES: allocated / calls}, details)
