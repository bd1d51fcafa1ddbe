"""Connections are counted by client, and memory for bodies by tenant."""

import subprocess
import sys
from ipaddress import ip_network

import pytest

from fairserve.platform.base.errors import RateLimitedError, UnavailableError
from fairserve.platform.server.http.connections import Connections
from fairserve.platform.server.http.descriptors import connections_within
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation


@pytest.mark.parametrize(
    "same",
    [
        ["2001:db8::1", "2001:db8::2"],
        ["2001:db8::1", "2001:db8:0:0:ffff::1"],
        ["192.0.2.1", "::ffff:192.0.2.1"],
        ["", ""],
    ],
)
def test_addresses_of_one_host_count_together(same):
    connections = Connections(10, 1)
    assert connections.connect(same[0]) is None
    assert isinstance(connections.connect(same[1]), RateLimitedError)
    connections.disconnect(same[0])
    assert connections.connect(same[1]) is None


@pytest.mark.parametrize("other", ["2001:db8:0:1::1", "192.0.2.2"])
def test_addresses_of_different_hosts_count_separately(other):
    connections = Connections(10, 1)
    assert connections.connect("2001:db8::1") is None
    assert connections.connect(other) is None


def test_a_rejected_connection_does_not_count():
    connections = Connections(2, 1, [ip_network("10.0.0.0/8")])
    assert [connections.connect("a") is None for _ in range(3)] == [True, False, False]
    assert connections.connect("10.0.0.1") is None
    assert isinstance(connections.connect("10.0.0.1"), UnavailableError)
    connections.disconnect("10.0.0.1")
    connections.disconnect("a")
    assert connections.open == 0
    assert not connections._by_client, "nothing is kept of who has left"


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(1, 1), (100, 25), (1024, 384), (20_000, 9872)]
)
def test_the_server_keeps_descriptors_for_itself(descriptors, connections):
    assert connections_within(descriptors) == connections


def test_the_limit_of_open_files_is_raised_to_the_hard_one():
    program = """
import resource
from fairserve.platform.server.http.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE), raise_descriptor_limit())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "300 (300, 300) 300\n"


def test_memory_is_bounded_by_owner_and_in_total():
    memory = BodyMemory(max_bytes=100, owner_share=0.4, max_body_bytes=10)
    memory.reserve("a", 40)
    with pytest.raises(RateLimitedError, match="bodies of 40 bytes, and this one would add 1"):
        memory.reserve("a", 1)
    memory.reserve("b", 24)  # 0.4 of what a leaves
    with pytest.raises(RateLimitedError):
        memory.reserve("b", 1)
    memory.release("a", 40)
    memory.reserve("b", 16)
    for owner in "cdef":
        memory.reserve(owner, 10)  # one body fits, whatever the others have
    memory.reserve("g", 10)
    memory.reserve("h", 10)
    with pytest.raises(UnavailableError) as full:
        memory.reserve("i", 1)
    assert full.value.headers == {"Retry-After": "5"}


def test_one_body_always_fits():
    memory = BodyMemory(max_bytes=10, owner_share=0.1, max_body_bytes=50)
    memory.reserve("a", 50)
    with pytest.raises(RateLimitedError):
        memory.reserve("a", 1)


def test_a_reservation_grows_and_is_released_once():
    memory = BodyMemory(max_bytes=100, owner_share=0.5, max_body_bytes=10)
    reservation = BodyReservation(memory, "a")
    for size in (10, 10, 4, 30):
        reservation.grow(size)
    with pytest.raises(RateLimitedError):
        reservation.grow(51)
    assert memory.used_bytes == 30
    reservation.release()
    reservation.release()
    assert memory.used_bytes == 0
