"""The capacity check agrees with a pool that is decoded step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.simulated.room import FutureRoom, ReservedRoom

calls = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(1, 3), st.integers(0, 6)),
    max_size=12,
)
"""Prompt tokens, steps left, samples, and steps before the next arrival."""


def peak_from(batch, step):
    """Return the peak of tokens held by a batch of ``(end, held, growth)`` from ``step`` on."""
    last = max((end for end, _, _ in batch), default=step)
    return max(
        sum(held + samples * (at - begin[0]) for end, held, (*begin, samples) in batch if at <= end)
        for at in range(step, last + 1)
    )


@given(calls, st.integers(10, 200))
def test_the_lookahead_admits_exactly_what_fits(arrivals, capacity):
    room, batch, step = FutureRoom(capacity), [], 0
    for number, (prompt, left, samples, pause) in enumerate(arrivals):
        held = prompt + samples
        entry = (step + left, held, (step, samples))
        fits = peak_from([*batch, entry], step) < capacity
        assert room.fits(held, left, samples, 0, step) == fits
        if fits:
            room.enter(str(number), held, left, samples, step)
            batch.append(entry)
        step += pause
        for gone in [each for each in batch if each[0] < step]:
            batch.remove(gone)
        for end, _, call_id in list(room._batch):
            if -end < step:
                room.leave(call_id)


@given(calls, st.integers(10, 200), st.integers(0, 50))
def test_reservations_are_sums(arrivals, capacity, locked):
    room, reserved = ReservedRoom(capacity), {}
    for number, (prompt, left, samples, pause) in enumerate(arrivals):
        held = prompt + samples
        need = held + left * samples
        assert room.fits(held, left, samples, locked, 0) == (
            sum(reserved.values()) + need + locked <= capacity
        )
        if need <= room.for_cache():
            room.enter(str(number), held, left, samples, 0)
            room.shrink(str(number), prompt // 2)
            reserved[str(number)] = need - prompt // 2
        if pause == 0 and reserved:
            room.leave(next(iter(reserved)))
            del reserved[next(iter(reserved))]
        assert room.for_cache() == capacity - sum(reserved.values())


def test_a_call_may_fill_the_pool_to_the_last_token():
    assert ReservedRoom(10).fits(5, 5, 1, 0, 0)
    assert not ReservedRoom(10).fits(5, 5, 1, 1, 0)
    assert FutureRoom(11).fits(5, 5, 1, 0, 0)
    assert not FutureRoom(10).fits(5, 5, 1, 0, 0)


def test_removing_an_unknown_call_is_an_error():
    with pytest.raises(KeyError):
        ReservedRoom(10).leave("nobody")
