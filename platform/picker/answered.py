"""A request of which this process saw no HTTP, because a gateway has answered it."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.base.request_facts import RequestFacts
from fairserve.platform.tenancy.auth import Principal


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request that has ended, for the access log."""

    method: str
    path: str
    status: int
    """Status that the client got; 0: none."""
    facts: RequestFacts
    principal: Principal | None
    duration_s: float
