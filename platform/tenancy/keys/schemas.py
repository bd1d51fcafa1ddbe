"""Bodies of the key routes of apps and tenants."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from fairserve.platform.db.schemas import Name, Strict

MAX_GRACE_S = 30 * 86_400


class KeyCreate(Strict):
    """A further key."""

    name: Name | None = None
    """Name for people."""
    expires_at: AwareDatetime | None = None


class KeyPatch(Strict):
    """A change of a key."""

    name: Name
    """Name for people."""


class KeyRotate(Strict):
    """A rotation; ``grace_s`` is the time in seconds for which the old keys stay valid."""

    grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)
