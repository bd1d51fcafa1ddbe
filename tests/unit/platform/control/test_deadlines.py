"""Times of calls end once each, in order, and leave nothing."""

import json

from fairserve.platform.control.live_calls import Deadlines


def ended(deadlines, now_s):
    found = []
    for call_id in deadlines.over(now_s):
        deadlines.end(call_id)
        found.append(call_id)
    return found


def test_times_end_once_in_the_order_of_their_begins():
    deadlines = Deadlines(10)
    for number, call_id in enumerate("abc"):
        deadlines.begin(call_id, number)
    assert ended(deadlines, 9.9) == []
    assert ended(deadlines, 11) == ["a", "b"]
    assert ended(deadlines, 20) == ["c"]
    assert len(deadlines) == 0


def test_a_call_that_begins_again_has_its_whole_time():
    deadlines = Deadlines(10)
    for call_id, now_s in (("a", 0), ("b", 1), ("a", 5)):
        deadlines.begin(call_id, now_s)
    assert ended(deadlines, 10.9) == []
    assert ended(deadlines, 11) == ["b"]
    deadlines.end("a")
    deadlines.begin("a", 12)
    assert ended(deadlines, 21.9) == [], "the first time is not that of the second"
    assert ended(deadlines, 22) == ["a"]


def test_a_call_that_ended_in_time_leaves_nothing():
    deadlines = Deadlines(360)
    for number in range(100):
        deadlines.begin(f"call {number}", number)
        deadlines.end(f"call {number}")
    deadlines.end("unknown")
    assert (len(deadlines), deadlines.snapshot()) == (0, [])


def test_a_snapshot_restores_times_in_their_order():
    deadlines = Deadlines(10)
    for call_id, now_s in (("b", 0), ("a", 1), ("b", 2)):
        deadlines.begin(call_id, now_s)
    other = Deadlines(10)
    other.restore(json.loads(json.dumps(deadlines.snapshot())))
    assert ended(other, 11) == ["a"]
    assert ended(other, 12) == ["b"]
