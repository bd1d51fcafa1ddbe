"""Roles of operators, from the lowest to the highest; each includes those before it."""

from __future__ import annotations

from typing import Literal

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


def includes(role: Role, needed: Role) -> bool:
    """Return whether a role allows what another one allows."""
    return ROLES.index(role) >= ROLES.index(needed)
