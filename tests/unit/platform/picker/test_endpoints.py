"""Test the addresses of workers as gateways name them."""

from types import SimpleNamespace

import pytest

from fairserve.platform.fleet.direct_address import direct_address
from fairserve.platform.picker.endpoints import Endpoints


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7:8000"),
        ("http://10.0.0.7", "10.0.0.7:80"),
        ("http://[fd00::7]:8000", "[fd00::7]:8000"),
        ("http://[FD00:0::7]:8000", "[fd00::7]:8000"),
        ("http://worker:8000", None),
        ("https://10.0.0.7:8000", None),
        ("http://10.0.0.7:8000/prefix", None),
        ("", None),
    ],
)
def test_an_endpoint_is_an_address_and_a_port(url, endpoint):
    assert direct_address(url) == endpoint


class Pool:
    """Workers by id: URL, whether they serve, and their sequences."""

    def __init__(self, **workers):
        self.found = {
            worker_id: SimpleNamespace(
                worker_id=worker_id,
                spec=SimpleNamespace(url=url),
                watched=SimpleNamespace(sequences=sequences),
                up=up,
            )
            for worker_id, (url, up, sequences) in workers.items()
        }

    def member(self, worker_id):
        return self.found.get(worker_id)

    def members(self):
        return list(self.found.values())

    def serves(self, worker_id):
        return self.found[worker_id].up


def test_hints_and_workers_without_an_endpoint_restrict_the_choice():
    plain = {"a": ("http://10.0.0.1:80", True, 0), "b": ("http://10.0.0.2:80", True, 0)}
    endpoints = Endpoints(Pool(**plain))
    assert endpoints.allowed(None) is None, "any worker"
    assert endpoints.allowed(endpoints.workers({"10.0.0.2:80", "10.0.0.9:80"})) == {"b"}
    assert endpoints.allowed(endpoints.workers({})) == frozenset(), "not: any worker"
    named = Endpoints(Pool(**plain, c=("http://c:80", True, 0)))
    assert named.allowed(None) == {"a", "b"}


def test_the_least_busy_ready_worker_is_picked_for_other_requests():
    endpoints = Endpoints(
        Pool(
            busy=("http://10.0.0.1:80", True, 3),
            idle=("http://10.0.0.2:80", True, 1),
            down=("http://10.0.0.3:80", False, 0),
            named=("http://named:80", True, 0),
        )
    )
    assert endpoints.any_ready(None) == "10.0.0.2:80"
    assert endpoints.any_ready(frozenset({"busy", "down"})) == "10.0.0.1:80"
    assert endpoints.any_ready(frozenset({"down"})) is None
    assert endpoints.ready(["busy", "idle", "down"]) == ["idle", "busy"]
