"""The file from which Envoy reads the workers' addresses while it runs.

A call names its worker by a header, and Envoy sends it there wherever that worker is in the file. Every
other choice, for a worker that is not there and for the second attempt, falls to the first priority:
it holds the relay only. So no call reaches a worker that was not chosen for it. Envoy ignores the health
of an endpoint that is named, so a worker that must get no call is left out of the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from fairserve.platform.envoy.addresses import Address

WORKERS = "workers"
"""Name of the cluster."""
_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_ALWAYS_FIRST = 1_000_000
"""Overprovisioning factor with which the first priority gets every call without a worker."""


class WorkersFile:
    """Writer of the file; each write replaces it as a whole."""

    def __init__(self, path: Path, relay: Address) -> None:
        """``relay`` takes the calls that miss their worker."""
        self.path = path
        self._relay = relay
        self._written = b""

    def write(self, workers: Mapping[str, str]) -> None:
        """Write the addresses ``IP:PORT`` of the workers that may get calls, by id.

        A worker that is left out finishes the calls that it has. Raises ValueError for an address
        of another form, OSError if the file cannot be written.
        """
        endpoints = [_endpoint(worker_id, text) for worker_id, text in sorted(workers.items())]
        priorities: list[dict[str, Any]] = [
            {"priority": 0, "lb_endpoints": [self._relay.endpoint()]}
        ]
        if endpoints:
            priorities.append({"priority": 1, "lb_endpoints": endpoints})
        assignment = {
            "@type": _TYPE,
            "cluster_name": WORKERS,
            "policy": {"overprovisioning_factor": _ALWAYS_FIRST},
            "endpoints": priorities,
        }
        content = orjson.dumps({"resources": [assignment]}, option=orjson.OPT_INDENT_2)
        if content != self._written:
            replace_file(self.path, content)
            self._written = content


def replace_file(path: Path, content: bytes) -> None:
    """Write a private file at once: readers see the old content or the new one."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)


def _endpoint(worker_id: str, text: str) -> dict[str, Any]:
    address = Address.parse(text)
    if address.path:
        raise ValueError(f"the address {text!r} of worker {worker_id!r} must be IP:PORT")
    return {
        **address.endpoint(),
        "metadata": {"filter_metadata": {"fairserve.worker": {"id": worker_id}}},
    }
