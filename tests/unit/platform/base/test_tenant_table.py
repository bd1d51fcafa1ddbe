"""Test tables of which tenants have shares: what a full one evicts, sizes and ages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.platform.base.tenant_table import TenantTable


@pytest.mark.parametrize("flooding", ["a", "abcd", "abcdefghij"])
def test_floods_evict_no_entry_of_a_tenant_within_its_share(flooding):
    table = TenantTable(100)
    for number in range(5):
        table.put("quiet", ("quiet", number), number)
    for number in range(1000):
        for tenant in flooding:
            table.put(tenant, (tenant, number), number)
    assert all(table.get(("quiet", number)) == number for number in range(5))
    each = (100 - 5) // len(flooding)
    for tenant in flooding:
        assert table.get((tenant, 999)) == 999
        assert table.get((tenant, 999 - each + 1)) is not None, "it has its share"
    assert len(table) == 100


def test_alone_a_tenant_has_the_table_and_makes_room_for_others():
    table = TenantTable(4)
    assert [table.put("a", number, number) for number in range(5)] == [[], [], [], [], [0]]
    assert table.put("b", "b0", "b0") == [1]
    assert table.put("b", "b1", "b1") == [2]
    assert table.put("b", "b2", "b2") == ["b0"], "equals do not displace each other"


def test_a_touched_entry_is_evicted_last():
    table = TenantTable(3)
    for number in range(3):
        table.put("a", number, number)
    table.touch(0)
    assert table.put("a", 3, 3) == [1]


def test_entries_have_sizes_and_ages():
    table = TenantTable(10, retention_s=5.0)
    assert table.put("a", "large", 1, 0.0, size=11) == [1]
    table.put("a", "half", 2, 0.0, size=5)
    table.put("b", "more", 3, 1.0, size=6)
    assert table.get("half", 1.0) == 2, "it was there first, and b has more"
    assert table.get("more", 1.0) is None
    table.put("b", "fits", 4, 1.0, size=5)
    assert table.get("half", 5.0) is None
    assert table.get("fits", 5.0) == 4
    assert table.put("b", "replaced", 5, 5.0) == [2]
    assert table.put("b", "replaced", 6, 5.0) == []
    assert (table.pop("replaced"), table.pop("replaced")) == (6, None)
    assert table.used == 5


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 4)), max_size=80),
)
def test_a_table_has_what_a_plain_model_has(limit, steps):
    table, model = TenantTable(limit), {}
    for tenant, key, size in steps:
        table.put(tenant, (tenant, key), size, size=size)
        model.pop((tenant, key), None)
        if size <= limit:
            model[tenant, key] = size
        while sum(model.values()) > limit:
            sizes = {}
            for (owner, _), each in model.items():
                sizes[owner] = sizes.get(owner, 0) + each
            most = max(sizes.values())
            largest = min(owner for owner, each in sizes.items() if each == most)
            evicted = tenant if sizes[tenant] == most else largest
            del model[next(entry for entry in model if entry[0] == evicted)]
        assert dict(table.items()) == model
        assert table.used == sum(model.values())
