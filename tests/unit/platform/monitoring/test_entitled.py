"""Test what clients are entitled to by their demand."""

import pytest
from alarm_world import equal_shares

from fairserve.platform.monitoring.entitled import shares_by_demand


def client(name):
    return ("t", "app", name)


def entitled(services, waiting=()):
    named = {client(name): service for name, service in services.items()}
    found = shares_by_demand(named, {client(name) for name in waiting}, equal_shares)
    return {owner[2]: share for owner, share in found.entitled.items()}


QUIET = {f"quiet-{number}": 1.0 for number in range(1_000)}


def test_quiet_clients_do_not_make_an_honest_one_a_flooder():
    """A user with 6 % of the service among 1,000 quiet ones is entitled to it, waiting or not."""
    services = {**QUIET, "honest": 64.0}
    assert entitled(services)["honest"] == pytest.approx(64 / 1064)
    assert entitled(services, ["honest"])["honest"] == pytest.approx(64 / 1064)


def test_what_others_leave_is_divided_among_those_who_want_more():
    found = entitled({**QUIET, "greedy": 900.0, "starved": 100.0}, ["greedy", "starved"])
    assert found["greedy"] == found["starved"] == pytest.approx(0.25)
    assert found["quiet-1"] == pytest.approx(1 / 2000)


def test_a_client_above_its_share_that_does_not_wait_is_held_against_those_who_do():
    found = entitled({"greedy": 90.0, "starved": 10.0}, ["starved"])
    assert found == pytest.approx({"greedy": 0.5, "starved": 0.5})


def test_clients_that_were_served_nothing_share_all():
    assert entitled({"a": 0.0, "b": 0.0}, ["a"]) == {"a": 0.5, "b": 0.5}
