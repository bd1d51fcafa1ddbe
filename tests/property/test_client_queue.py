"""A client's queue equals a sorted list: calls arrive, leave from any place, and return."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.client_queues import ClientQueue, Entry


def entry(arrival):
    return Entry(LocalCall(f"x{arrival}", "c", 1, 1, arrival=arrival))


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.9]))
def test_the_queue_equals_a_sorted_list(seed, from_any_place):
    rng = random.Random(seed)
    queue, waiting, away = ClientQueue(), [], []
    for arrival in range(150):
        kind = rng.random()
        if kind < 0.4:
            waiting.append(entry(arrival))
            queue.add(waiting[-1])
        elif kind < 0.75 and waiting:
            out = rng.choice(waiting) if rng.random() < from_any_place else waiting[0]
            waiting.remove(out)
            away.append(out)
            following = queue.remove(out)
            assert following is (waiting[0] if waiting else None)
        elif away:
            back = away.pop(rng.randrange(len(away)))
            if rng.random() < 0.8:
                queue.add(back)
                waiting = sorted([*waiting, back], key=lambda other: other.arrival)
        assert queue.first is (waiting[0] if waiting else None)
        assert len(queue) == len(waiting)


def test_cancelled_calls_do_not_accumulate():
    queue = ClientQueue()
    queue.add(entry(0))
    for arrival in range(1, 5000):
        late = entry(arrival)
        queue.add(late)
        queue.remove(late)
    assert len(queue) == 1
    assert len(queue.fresh) < 50
