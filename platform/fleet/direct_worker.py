"""A worker to which another process sends calls: its address, its token, and its share in the count.

Only a worker at a plain ``http`` address of numbers qualifies, because such a process resolves no names,
and only one without a local queue in this process: its calls are ordered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fairserve.engine.wire.base import (
    WorkerRejectedError,
    WorkerRequest,
    WorkerUnavailableError,
)
from fairserve.engine.wire.watched_client import CarriedCall
from fairserve.platform.fleet.member import Member


class DirectWorker:
    """One such worker, at the moment of a call."""

    def __init__(self, member: Member, address: str) -> None:
        """``address`` is ``ip:port``."""
        self.address = address
        self._member = member

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers that carry its token; empty without one."""
        return self._member.http.token_headers

    def body(self, request: WorkerRequest) -> dict[str, Any]:
        """Return the body of a call as it understands it."""
        return self._member.http.body_of(request)

    def reports_start(self, request: WorkerRequest) -> bool:
        """Return whether it reports a call before its answer; else the call starts when it is sent."""
        return self._member.http.reports_start(request)

    def send(self, request: WorkerRequest) -> CarriedCall:
        """Count a call that is sent to it now."""
        return self._member.watched.carried(request)

    def error_of(self, status: int) -> WorkerUnavailableError | WorkerRejectedError:
        """Return the error of an answer with a status other than 200, whose body is not known."""
        return self._member.http.error_of(status)


@lru_cache(maxsize=4096)
def direct_address(url: str) -> str | None:
    """Return ``ip:port`` of a worker's URL, an IPv6 address in brackets; None if it has no such form."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path or parts.username is not None or parts.hostname is None:
        return None
    try:
        address = ip_address(parts.hostname)
    except ValueError:
        return None
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{parts.port or 80}"
