"""Gaps, replays and restarts of a worker, one situation a test; all of them mixed in test_kv_view."""

from fairserve.engine.kv_events.sequence import MAX_FRUITLESS, Ask, Begin, KvSequence, Take


def name(sequence, life=""):
    return f"{life}{sequence}".encode()


def take(*sequences, life=""):
    return [Take(sequence, name(sequence, life)) for sequence in sequences]


def live(sequence, *numbers, life=""):
    return [step for n in numbers for step in sequence.live(n, name(n, life))]


def replay(sequence, *numbers, life=""):
    steps = [step for n in numbers for step in sequence.replayed(n, name(n, life))]
    return steps + sequence.ended()


def followed(upto):
    """A sequence that has taken the batches below ``upto``."""
    sequence = KvSequence()
    assert sequence.connected() == [Ask(0)]
    assert replay(sequence) == [Begin(complete=True)]
    assert live(sequence, *range(upto)) == take(*range(upto))
    return sequence


def test_from_the_first_batch_on():
    sequence = followed(3)
    assert (sequence.next, sequence.gaps, sequence.replaying) == (3, 0, False)


def test_what_was_published_before_comes_by_the_replay():
    sequence = KvSequence()
    assert sequence.connected() == [Ask(0)]
    assert live(sequence, 2, 3) == [], "they wait"
    assert replay(sequence, 0, 1, 2) == [Begin(complete=True), *take(0, 1, 2, 3)]


def test_a_gap_is_filled():
    sequence = followed(3)
    assert live(sequence, 5) == [Ask(2)], "with the last one, to know the worker by it"
    assert live(sequence, 6) == []
    assert replay(sequence, 2, 3, 4, 5) == take(3, 4, 5, 6)
    assert (sequence.gaps, sequence.restarts) == (1, 0)
    assert live(sequence, 7) == take(7)


def test_what_came_before_the_subscription_is_found_by_a_check():
    sequence = followed(3)
    assert sequence.check() == [Ask(2)]
    assert sequence.check() == [], "it is asked already"
    assert replay(sequence, 2, 3) == take(3)
    assert (sequence.gaps, live(sequence, 4)) == (0, take(4))


def test_a_gap_that_cannot_be_filled_is_given_up():
    sequence = followed(3)
    assert live(sequence, 9) == [Ask(2)]
    assert replay(sequence, 7, 8, 9) == [Begin(complete=False), *take(7, 8, 9)]
    assert live(sequence, 10) == take(10)


def test_a_replay_that_never_comes_is_given_up():
    sequence = followed(3)
    assert live(sequence, 9, 10) == [Ask(2)]
    assert sequence.failed() == [Begin(complete=False), *take(9, 10)]
    assert live(sequence, 11) == take(11)
    assert sequence.failed() == [], "none is running"
    assert sequence.ended() == []
    assert replay(sequence, 11, 12) == []


def test_no_replays_at_all():
    late, early = KvSequence(), KvSequence()
    for sequence in (late, early):
        sequence.connected()
        assert sequence.failed() == [Begin(complete=False)]
    assert live(late, 4) == [Ask(0)]
    assert late.failed() == [Begin(complete=False), *take(4)]
    assert live(early, 0, 1) == [Begin(complete=True), *take(0, 1)], "nothing is before number 0"


def test_the_state_of_a_publisher_that_folds_what_is_old():
    """A folded batch has the number of the last batch in it, wherever the replay begins."""
    sequence = followed(3)
    assert live(sequence, 9) == [Ask(2)]
    steps = [*sequence.replayed(7, b"state"), *replay(sequence, 8, 9)]
    assert steps == [Begin(complete=False), Take(7, b"state"), *take(8, 9)]


def test_another_life_is_known_by_its_numbers():
    sequence = followed(5)
    assert live(sequence, 0, life="b") == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, 1, life="b") == take(0, 1, life="b")
    assert sequence.restarts == 1


def test_another_life_is_known_by_its_last_batch():
    sequence = followed(3)
    assert sequence.connected() == [Ask(2)]
    assert live(sequence, 4, life="b") == []
    assert sequence.replayed(2, name(2, "b")) == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, 1, 2, 3, 4, life="b") == take(0, 1, 2, 3, 4, life="b")
    assert live(sequence, 5, life="b") == take(5, life="b")


def test_another_life_is_known_by_what_it_has_not():
    sequence = followed(3)
    assert sequence.connected() == [Ask(2)]
    assert replay(sequence) == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, life="b") == take(0, life="b")


def test_the_same_life_after_a_broken_connection():
    sequence = followed(3)
    assert sequence.connected() == [Ask(2)]
    assert replay(sequence, 2, 3) == take(3)
    assert live(sequence, 3, 4) == take(4), "3 came twice"
    assert sequence.restarts == 0


def test_what_was_given_up_may_be_had_over_another_connection():
    sequence = followed(3)
    live(sequence, 9)
    assert sequence.failed() == [Begin(complete=False), *take(9)]
    assert sequence.connected() == [Ask(0)]
    steps = [*sequence.replayed(9, b"state"), *replay(sequence, 10)]
    assert steps == [Begin(complete=False), Take(9, b"state"), *take(10)]
    assert sequence.connected() == [Ask(0)]
    assert replay(sequence, *range(12)) == [Begin(complete=True), *take(*range(12))]
    assert sequence.connected() == [Ask(11)]


def test_what_waited_at_an_earlier_connection_is_forgotten():
    """A restarted worker's numbers may follow those of this generation by chance."""
    sequence = followed(2)
    assert live(sequence, 3) == [Ask(1)]
    assert sequence.connected() == [Ask(1)]
    assert replay(sequence, 2, life="b") == [Begin(complete=False), *take(2, life="b")]
    assert live(sequence, 3, life="b") == take(3, life="b")


def test_another_life_in_the_middle_of_a_replay():
    sequence = followed(3)
    assert live(sequence, 6, 7) == [Ask(2)]
    assert live(sequence, 0, life="b") == [Begin(complete=True), Ask(0)]
    assert replay(sequence, 0, life="b") == take(0, life="b")


def test_a_replay_with_holes_is_asked_for_again():
    sequence = followed(1)
    assert live(sequence, 6) == [Ask(0)]
    assert replay(sequence, 0, 1, 2, 4, 5) == [*take(1, 2), Ask(2)]
    assert replay(sequence, 2, 3, 4, 5, 6) == take(3, 4, 5, 6)


def test_replays_that_bring_nothing_are_not_asked_for_for_ever():
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


def test_a_view_without_a_connection_for_long_is_dropped():
    sequence = KvSequence()
    assert sequence.lost() == [], "there was no batch"
    sequence = followed(3)
    live(sequence, 9)
    assert sequence.lost() == [Begin(complete=False)]
    assert sequence.failed() == []
    assert sequence.connected() == [Ask(0)]
    assert replay(sequence, *range(10)) == [Begin(complete=True), *take(*range(10))]


def test_what_waits_is_bounded():
    sequence = KvSequence(max_waiting=5)
    sequence.connected()
    assert live(sequence, *range(10, 15)) == []
    assert live(sequence, 15) == [Begin(complete=False), *take(*range(10, 16))]
    assert replay(sequence, 3, 4) == []
