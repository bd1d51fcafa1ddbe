"""Test gaps, replays and restarts of a worker one by one; ``test_kv_view`` mixes all of them."""

from fairserve.engine.kv_events import sequence as kv_sequence
from fairserve.engine.kv_events.sequence import MAX_FRUITLESS, Ask, Begin, KvSequence, Take


def name(sequence, generation=""):
    return f"{generation}{sequence}".encode()


def take(*sequences, generation=""):
    return [Take(sequence, name(sequence, generation)) for sequence in sequences]


def live(sequence, *numbers, generation=""):
    return [step for n in numbers for step in sequence.live(n, name(n, generation))]


def replay(sequence, *numbers, generation=""):
    steps = [step for n in numbers for step in sequence.replayed(n, name(n, generation))]
    return steps + sequence.ended()


def followed(upto):
    """Return a sequence that has taken the batches below ``upto``."""
    sequence = KvSequence()
    assert sequence.connected() == [Ask(0)]
    assert replay(sequence) == [Begin(complete=True)]
    assert live(sequence, *range(upto)) == take(*range(upto))
    return sequence


def test_batches_are_followed_from_the_first_one():
    sequence = followed(3)
    assert (sequence.next, sequence.gaps, sequence.replaying) == (3, 0, False)


def test_earlier_batches_arrive_by_replay():
    sequence = KvSequence()
    assert sequence.connected() == [Ask(0)]
    assert live(sequence, 2, 3) == [], "they wait"
    assert replay(sequence, 0, 1, 2) == [Begin(complete=True), *take(0, 1, 2, 3)]


def test_a_gap_is_filled_by_a_replay():
    sequence = followed(3)
    assert live(sequence, 5) == [Ask(2)], "with the last one, to know the worker by it"
    assert live(sequence, 6) == []
    assert replay(sequence, 2, 3, 4, 5) == take(3, 4, 5, 6)
    assert (sequence.gaps, sequence.restarts) == (1, 0)
    assert live(sequence, 7) == take(7)


def test_a_check_finds_batches_from_before_the_subscription():
    sequence = followed(3)
    assert sequence.check() == [Ask(2)]
    assert sequence.check() == [], "it is asked already"
    assert replay(sequence, 2, 3) == take(3)
    assert (sequence.gaps, live(sequence, 4)) == (0, take(4))


def test_a_gap_that_cannot_be_filled_is_abandoned():
    sequence = followed(3)
    assert live(sequence, 9) == [Ask(2)]
    assert replay(sequence, 7, 8, 9) == [Begin(complete=False), *take(7, 8, 9)]
    assert live(sequence, 10) == take(10)


def test_a_replay_that_never_arrives_is_abandoned():
    sequence = followed(3)
    assert live(sequence, 9, 10) == [Ask(2)]
    assert sequence.failed() == [Begin(complete=False), *take(9, 10)]
    assert live(sequence, 11) == take(11)
    assert sequence.failed() == [], "none is running"
    assert sequence.ended() == []
    assert replay(sequence, 11, 12) == []


def test_a_publisher_without_replays_is_followed():
    late, early = KvSequence(), KvSequence()
    for sequence in (late, early):
        sequence.connected()
        assert sequence.failed() == [Begin(complete=False)]
    assert live(late, 4) == [Ask(0)]
    assert late.failed() == [Begin(complete=False), *take(4)]
    assert live(early, 0, 1) == [Begin(complete=True), *take(0, 1)], "nothing is before number 0"


def test_a_folded_state_replaces_old_batches():
    """A folded batch has the number of the last batch in it, wherever the replay begins."""
    sequence = followed(3)
    assert live(sequence, 9) == [Ask(2)]
    steps = [*sequence.replayed(7, b"state"), *replay(sequence, 8, 9)]
    assert steps == [Begin(complete=False), Take(7, b"state"), *take(8, 9)]


def test_a_new_generation_is_detected_by_its_numbers():
    sequence = followed(5)
    assert live(sequence, 0, generation="b") == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, 1, generation="b") == take(0, 1, generation="b")
    assert sequence.restarts == 1


def test_a_new_generation_is_detected_by_its_last_batch():
    sequence = followed(3)
    assert sequence.connected() == [Ask(2)]
    assert live(sequence, 4, generation="b") == []
    assert sequence.replayed(2, name(2, "b")) == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, 1, 2, 3, 4, generation="b") == take(0, 1, 2, 3, 4, generation="b")
    assert live(sequence, 5, generation="b") == take(5, generation="b")


def test_a_new_generation_is_detected_by_missing_batches():
    sequence = followed(3)
    assert sequence.connected() == [Ask(2)]
    assert replay(sequence) == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, generation="b") == take(0, generation="b")


def test_the_same_generation_continues_after_a_broken_connection():
    sequence = followed(3)
    assert sequence.connected() == [Ask(2)]
    assert replay(sequence, 2, 3) == take(3)
    assert live(sequence, 3, 4) == take(4), "3 came twice"
    assert sequence.restarts == 0


def test_abandoned_batches_are_requested_on_the_next_connection():
    sequence = followed(3)
    live(sequence, 9)
    assert sequence.failed() == [Begin(complete=False), *take(9)]
    assert sequence.connected() == [Ask(0)]
    steps = [*sequence.replayed(9, b"state"), *replay(sequence, 10)]
    assert steps == [Begin(complete=False), Take(9, b"state"), *take(10)]
    assert sequence.connected() == [Ask(0)]
    assert replay(sequence, *range(12)) == [Begin(complete=True), *take(*range(12))]
    assert sequence.connected() == [Ask(11)]


def test_waiting_batches_of_an_earlier_connection_are_dropped():
    """A restarted worker's numbers may follow those of this generation by chance."""
    sequence = followed(2)
    assert live(sequence, 3) == [Ask(1)]
    assert sequence.connected() == [Ask(1)]
    assert replay(sequence, 2, generation="b") == [Begin(complete=False), *take(2, generation="b")]
    assert live(sequence, 3, generation="b") == take(3, generation="b")


def test_a_new_generation_may_begin_during_a_replay():
    sequence = followed(3)
    assert live(sequence, 6, 7) == [Ask(2)]
    assert live(sequence, 0, generation="b") == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, generation="b") == take(0, generation="b")


def test_an_incomplete_replay_is_requested_again():
    sequence = followed(1)
    assert live(sequence, 6) == [Ask(0)]
    assert replay(sequence, 0, 1, 2, 4, 5) == [*take(1, 2), Ask(2)]
    assert replay(sequence, 2, 3, 4, 5, 6) == take(3, 4, 5, 6)


def test_fruitless_replays_are_bounded():
    sequence = followed(1)
    steps = live(sequence, 6)
    asked = 0
    while steps[-1:] == [Ask(0)]:
        asked += 1
        steps = replay(sequence, 0)
    assert asked == MAX_FRUITLESS
    assert steps == [Begin(complete=False), *take(6)]
    steps, asked = live(sequence, 9), 0
    while steps[-1:] and isinstance(steps[-1], Ask):
        asked += 1
        assert asked < 10
        steps = replay(sequence, 6, 8) if steps[-1] == Ask(6) else replay(sequence, 8)
    assert steps == [Begin(complete=False), *take(8, 9)]


def test_a_view_is_dropped_after_a_long_disconnection():
    sequence = KvSequence()
    assert sequence.lost() == [], "there was no batch"
    sequence = followed(3)
    live(sequence, 9)
    assert sequence.lost() == [Begin(complete=False)]
    assert sequence.failed() == []
    assert sequence.connected() == [Ask(0)]
    assert replay(sequence, *range(10)) == [Begin(complete=True), *take(*range(10))]


def test_waiting_batches_are_bounded():
    sequence = KvSequence(max_waiting=5)
    sequence.connected()
    assert live(sequence, *range(10, 15)) == []
    assert live(sequence, 15) == [Begin(complete=False), *take(*range(10, 16))]
    assert replay(sequence, 3, 4) == []


def test_the_bytes_of_waiting_batches_are_bounded(monkeypatch):
    """Also of a worker whose replay never ends."""
    monkeypatch.setattr(kv_sequence, "MAX_WAITING_BYTES", 3 * len(name(10)))
    sequence = KvSequence()
    sequence.connected()
    assert live(sequence, 10, 11, 12) == []
    assert live(sequence, 13) == [Begin(complete=False), *take(*range(10, 14))]
    assert live(sequence, 14, 15, 16, 17) == take(*range(14, 18)), "none of them waits"
