"""Test what is read of InferencePools and pods."""

import pytest

from fairserve.platform.picker.inference_pool import ready_address, selector_and_ports


def pool(labels, *ports):
    selector = {"matchLabels": labels}
    return {"spec": {"selector": selector, "targetPorts": [{"number": port} for port in ports]}}


def test_labels_and_ports_of_a_pool():
    found = selector_and_ports(pool({"b": "2", "a": "1"}, 8000, 8001))
    assert found == ("a=1,b=2", (8000, 8001))
    assert selector_and_ports(None) is None


@pytest.mark.parametrize("wrong", [pool({}, 8000), pool({"a": "1"}), {"spec": {}}, {}])
def test_a_pool_that_would_name_every_pod_is_rejected(wrong):
    with pytest.raises(ValueError, match="matchLabels"):
        selector_and_ports(wrong)


def pod(address="10.0.0.7", ready="True", **metadata):
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]
    return {"metadata": metadata, "status": {"podIP": address, "conditions": conditions}}


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (pod(), "10.0.0.7"),
        (pod("fd00::7"), "[fd00::7]"),
        (pod(ready="False"), None),
        (pod(ready="Unknown"), None),
        (pod(""), None),
        (pod(deletionTimestamp="2026-01-01T00:00:00Z"), None),
        ({"metadata": {}, "status": {"podIP": "10.0.0.7"}}, None),
        ({"metadata": {}}, None),
    ],
)
def test_the_address_of_a_ready_pod(found, address):
    assert ready_address(found) == address
