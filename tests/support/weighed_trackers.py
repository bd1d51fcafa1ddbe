"""Print the result of `tracker_bytes_per_call` for trackers of known size, as JSON.

It is a separate program, as other tests would allocate memory in the same process.
"""

import gc
import json
import sys

from fairserve.benchmarks.bench import tracker_calls
from fairserve.benchmarks.bench.tracker_calls import TrackerMemory, Traffic
from fairserve.interactions.tracking.run import Attachment


class Weight:
    """A tracker that keeps this many bytes of each call and nothing else."""

    BYTES = 1000

    def __init__(self, limits):
        self.kept = []

    def __len__(self):
        return 1

    def attach(self, call, profile, now_s):
        return Attachment(1, False, False)

    def accept(self, call, attachment, now_s):
        self.kept.append(bytes(self.BYTES - sys.getsizeof(b"")))

    def finish(self, call, outcome, tokens, profile, now_s, *, continuation_keys):
        pass


def figure(runs, seed):
    return TrackerMemory(runs, seed).round().figures["tracker_bytes_per_call"]


def objects_per_call(runs, seed):
    """Return the sizes of all objects of a tracker, each counted once, by its calls."""
    traffic = Traffic(runs, seed)
    traffic.grow()
    constants = {id(text) for text in (tracker_calls.APP, "tenant", "user", "")}
    found, todo = {}, [traffic.tracker]
    while todo:
        each = todo.pop()
        if id(each) in found or id(each) in constants or isinstance(each, type):
            continue
        found[id(each)] = sys.getsizeof(each)
        todo += gc.get_referents(each)
        if isinstance(each, dict):
            todo += each  # the collector does not follow keys that are strings
    return sum(found.values()) / traffic.calls


def main():
    figures = {"the tracker": figure(200, seed=1), "its objects": objects_per_call(200, seed=2)}
    tracker_calls.Tracker = Weight
    figures["a thousand bytes a call"] = figure(2000, seed=1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
