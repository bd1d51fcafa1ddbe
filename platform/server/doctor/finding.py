"""Result of one check of ``fairserve doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
"""``warn``: the server runs, with the limit that is named; ``fail``: it does not, or not correctly."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check, with what was found and what helps."""

    check: str
    status: Status
    found: str
    help: str = ""
    """The next step; empty if there is none."""


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, next_step: str) -> Finding:
    """Return a finding that limits the server."""
    return Finding(check, "warn", found, next_step)


def fail(check: str, found: str, next_step: str) -> Finding:
    """Return a finding with which the server does not work."""
    return Finding(check, "fail", found, next_step)
