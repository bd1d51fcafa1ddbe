"""Test the entitlement of clients by water filling, and their satisfaction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.scheduling.metrics import satisfied, water_filling

CLIENTS = st.dictionaries(
    st.text(max_size=3), st.tuples(st.floats(0, 1e6), st.floats(0.1, 10)), min_size=1, max_size=6
)


@given(CLIENTS, st.floats(0, 1))
def test_a_total_is_divided_by_weighted_water_filling(clients, part):
    demands = {client: demand for client, (demand, _) in clients.items()}
    weights = {client: weight for client, (_, weight) in clients.items()}
    total = part * sum(demands.values())
    shares = water_filling(demands, total, weights)
    assert sum(shares.values()) == pytest.approx(total, abs=1e-3)
    level = max(share / weights[client] for client, share in shares.items())
    for client, share in shares.items():
        assert share <= demands[client] + 1e-6
        whole = share == pytest.approx(demands[client])
        assert whole or share / weights[client] == pytest.approx(level, rel=1e-6, abs=1e-3)


def test_a_client_within_its_share_gets_its_whole_demand():
    assert water_filling({"a": 1.0, "b": 9.0, "c": 9.0}, 7.0) == {"a": 1.0, "b": 3.0, "c": 3.0}
    assert water_filling({"a": 9.0, "b": 9.0}, 6.0, {"a": 2.0}) == {"b": 2.0, "a": 4.0}


def test_service_above_the_entitlement_adds_no_satisfaction():
    shares = satisfied({"a": 4.0, "b": 1.0}, {"a": 2.0, "b": 2.0, "c": 1.0, "d": 0.0})
    assert shares == {"a": 1.0, "b": 0.5, "c": 0.0, "d": 1.0}
