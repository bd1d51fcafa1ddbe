"""The shape of a run's graph: its width, its critical path, and how much of its time was waiting.

The graph comes as lists of numbers, each call after its parents, so that one pass forwards and one
backwards suffice. Cost: O(calls + edges), without an object per edge: a run may have 10,000 calls of
64 parents each. :class:`~fairserve.interactions.tracking.graph.InteractionGraph` knows more, at a
higher cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class GraphShape(NamedTuple):
    """Shape of a whole graph. Calls are their numbers in it."""

    parallelism: int
    """Calls of the widest stage."""
    critical_path: list[int]
    """The calls of the path that took longest, first to last."""
    duration_s: float
    """Duration of that path in seconds."""


def time_waited(times: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the span of calls in seconds, and the part of it in which some waited and none ran.

    A call is its begin, the seconds that it waited then, and those of it all. Cost: O(n log n).
    """
    changes: list[tuple[float, int, int]] = []
    for begin_s, waited_s, duration_s in times:
        changes += [(begin_s, 1, 0), (begin_s + waited_s, -1, 1)]
        changes.append((begin_s + max(waited_s, duration_s), 0, -1))
    changes.sort()
    waited_s, waiting, running = 0.0, 0, 0
    for (at_s, waits, runs), (next_s, _, _) in pairwise(changes):
        waiting, running = waiting + waits, running + runs
        if waiting and not running:
            waited_s += next_s - at_s
    return (changes[-1][0] - changes[0][0] if changes else 0.0), waited_s


def shape_of(parents: Sequence[Sequence[int]], durations_s: Sequence[float]) -> GraphShape:
    """Return the shape of a graph. ``parents`` of a call are smaller than its own number.

    Of equally long paths the critical one goes through the calls that come first.
    """
    depths: list[int] = []
    for its_parents in parents:
        depths.append(1 + max((depths[parent] for parent in its_parents), default=0))
    left_s = list(durations_s)
    """Length of the longest path from each call on, once its children have been seen."""
    below_s = [0.0] * len(left_s)
    following: list[int | None] = [None] * len(left_s)
    for call in reversed(range(len(left_s))):
        left_s[call] += below_s[call]
        for parent in parents[call]:
            if following[parent] is None or left_s[call] >= below_s[parent]:
                below_s[parent], following[parent] = left_s[call], call
    roots = [call for call, its_parents in enumerate(parents) if not its_parents]
    at: int | None = max(roots, key=left_s.__getitem__, default=None)
    path: list[int] = []
    while at is not None:
        path.append(at)
        at = following[at]
    parallelism = max(Counter(depths).values(), default=0)
    return GraphShape(parallelism, path, left_s[path[0]] if path else 0.0)
