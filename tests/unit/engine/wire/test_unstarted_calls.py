"""The starts of calls are derived from the number that still wait."""

from fairserve.engine.wire.unstarted_calls import UnstartedCalls


def calls(*sequences, streamed=()):
    """Return calls sent at 0, 1, 2 ... seconds, their keys, and the list of those that started."""
    unstarted, started = UnstartedCalls(), []
    keys = []
    for at, size in enumerate(sequences):
        report = None if at in streamed else (lambda at=at: started.append(at))
        keys.append(unstarted.add(size, float(at), report))
    return unstarted, keys, started


def test_all_but_the_waiting_ones_have_started_in_the_order_in_which_they_were_sent():
    unstarted, _, started = calls(1, 1, 1)
    unstarted.read(3, 9.0)
    assert started == []
    unstarted.read(1, 9.0)
    assert started == [0, 1]
    assert unstarted.needed
    unstarted.read(0, 9.0)
    assert (started, unstarted.needed) == ([0, 1, 2], False)
    unstarted.read(0, 9.0)
    assert started == [0, 1, 2], "each is reported once"


def test_a_call_that_was_just_sent_is_not_counted():
    unstarted, _, started = calls(1, 1)
    unstarted.read(0, 0.5)
    assert started == [0]


def test_the_samples_of_a_call_wait_one_by_one():
    unstarted, _, started = calls(4, 1)
    unstarted.read(2, 9.0)
    assert started == [], "one of its samples may wait"
    unstarted.read(1, 9.0)
    assert started == [0]


def test_streamed_calls_are_counted_and_report_by_themselves():
    unstarted, keys, started = calls(1, 1, streamed={0})
    unstarted.read(1, 9.0)
    assert started == []
    unstarted.remove(keys[0])
    unstarted.read(1, 9.0)
    assert started == [], "the other one waits"
    unstarted.read(0, 9.0)
    assert started == [1]


def test_an_ended_call_is_not_reported():
    unstarted, keys, started = calls(1)
    unstarted.remove(keys[0])
    unstarted.start(keys[0])
    unstarted.read(0, 9.0)
    assert (started, unstarted.needed) == ([], False)


def test_a_call_is_known_to_wait_once_a_reading_has_found_it():
    unstarted, keys, _ = calls(1, 1, 1, streamed={2})
    assert not any(map(unstarted.waits, keys)), "nothing was read"
    unstarted.read(2, 9.0)
    assert [unstarted.waits(key) for key in keys] == [False, True, False]
    unstarted.read(0, 9.0)
    assert not any(map(unstarted.waits, keys))
