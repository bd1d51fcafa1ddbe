"""Test limits that owners share: each has its share of what the others leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.platform.base.shared_limit import SharedLimit


def fill(limit, *owners):
    """Let each owner take all it gets, one after the other in turns; return what each has."""
    taking = set(owners)
    while taking:
        taking = {owner for owner in sorted(taking) if limit.take(owner) is None}
    return [limit.of(owner) for owner in owners]


@pytest.mark.parametrize(
    ("owners", "each"), [("a", 250), ("ab", 200), ("abcd", 142), ("abcdefghij", 76)]
)
def test_owners_that_want_everything_leave_room_for_one_more(owners, each):
    limit = SharedLimit(1000, 1 / 4)
    assert all(abs(got - each) <= len(owners) for got in fill(limit, *owners))
    assert limit.take("late") is None
    assert limit.full(owners[0]) == "owner"


def test_an_owner_that_was_first_makes_room_as_it_releases():
    limit = SharedLimit(100, 1 / 2)
    limit.add("a", 50)
    assert fill(limit, "b") == [25]
    limit.release("a", 50)
    assert fill(limit, "b") == [50]


def test_the_least_is_everyones_until_nothing_is_left():
    limit = SharedLimit(10, 0.1, least=4)
    assert [limit.take(owner, 4) for owner in "abc"] == [None, None, "all"]
    assert limit.take("a", 1) == "owner"
    assert limit.used == 8


@given(
    st.integers(1, 200),
    st.floats(0.01, 1),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 30), st.booleans()), max_size=60),
)
def test_what_is_taken_is_what_is_in_use(size, share, steps):
    limit, held = SharedLimit(size, share), []
    for owner, amount, release in steps:
        if release and held:
            limit.release(*held.pop())
        elif limit.take(owner, amount) is None:
            held.append((owner, amount))
        assert limit.used == sum(each for _, each in held) <= size
        assert limit.of(owner) == sum(each for name, each in held if name == owner)
