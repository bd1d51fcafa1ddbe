"""Tables of which all owners have shares: what a full one removes, sizes and ages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions.tracking.shared_table import SharedTable

A, B = ("a",), ("b",)


@pytest.mark.parametrize(
    ("loud", "quiet"),
    [
        (("loud",), ("quiet",)),
        (("loud", "app", "u"), ("quiet", "app", "u")),
        (("t", "loud", "u"), ("t", "quiet", "u")),
        (("t", "app", "loud"), ("t", "app", "quiet")),
    ],
)
@pytest.mark.parametrize("floods", [1, 4, 10])
def test_floods_take_no_entry_of_an_owner_within_its_share(loud, quiet, floods):
    table = SharedTable(100)
    for number in range(5):
        table.put(quiet, ("quiet", number), number)
    for number in range(1000):
        for flood in range(floods):
            owner = tuple(f"loud{flood}" if name == "loud" else name for name in loud)
            table.put(owner, (flood, number), number)
    assert all(table.get(("quiet", number)) == number for number in range(5))
    each = (100 - 5) // floods
    for flood in range(floods):
        assert table.get((flood, 999)) == 999
        assert table.get((flood, 999 - each + 1)) is not None, "it has its share"
    assert len(table) == 100


def test_a_touched_entry_leaves_last():
    table = SharedTable(3)
    for number in range(3):
        table.put(A, number, number)
    table.touch(0)
    table.touch("unknown")
    assert table.put(A, 3, 3) == [1]


def test_entries_that_are_not_kept_leave_first():
    table = SharedTable(3)
    for number in range(6):
        table.put(A, number, number, kept=number < 2)
    assert [number for number in range(6) if table.get(number) is not None] == [0, 1, 5]


def test_entries_have_sizes_and_ages():
    table = SharedTable(10)
    assert table.put(A, "large", 1, 5.0, size=11) == [1]
    table.put(A, "half", 2, 5.0, size=5)
    table.put(B, "more", 3, 6.0, size=6)
    assert table.get("half", 1.0) == 2, "it was there first, and b has more"
    assert table.get("more", 1.0) is None
    table.put(B, "fits", 4, 6.0, size=5)
    assert table.get("half", 5.0) is None
    assert table.get("fits", 5.0) == 4
    table.expire(5.0)
    assert table.put(B, "replaced", 5, 10.0) == []
    assert table.put(B, "replaced", 6, 10.0) == []
    assert list(table.items()) == [(B, "fits", 6.0, 4), (B, "replaced", 10.0, 6)]
    assert (table.pop("replaced"), table.pop("replaced")) == (6, None)
    assert table.used == 5


def test_expired_entries_are_removed_in_shares():
    table = SharedTable(1000)
    for number in range(1000):
        table.put(A, number, number, 1.0)
    table.expire(1.0)
    assert len(table) == 1000 - 256


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 4)), max_size=80),
)
def test_a_table_has_what_a_plain_model_has(limit, steps):
    table, model = SharedTable(limit), {}
    for tenant, key, size in steps:
        table.put((tenant,), (tenant, key), size, size=size)
        model.pop((tenant, key), None)
        if size <= limit:
            model[tenant, key] = size
        while sum(model.values()) > limit:
            sizes = {}
            for (owner, _), each in model.items():
                sizes[owner] = sizes.get(owner, 0) + each
            most = max(sizes.values())
            largest = min(owner for owner, each in sizes.items() if each == most)
            leaving = tenant if sizes[tenant] == most else largest
            del model[next(entry for entry in model if entry[0] == leaving)]
        assert [(key, value) for _, key, _, value in table.items()] == list(model.items())
        assert all(until_s == math.inf for _, _, until_s, _ in table.items())
        assert table.used == sum(model.values())
