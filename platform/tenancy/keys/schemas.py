"""Bodies of the key routes of admins, tenants and apps."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from fairserve.platform.base.roles import Role
from fairserve.platform.db.schemas import KeyOut, Name, NewKeyOut, Strict

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


class AdminKeyCreate(KeyCreate):
    """A further admin key."""

    role: Role = "admin"


class AdminKeyPatch(Strict):
    """Changes of an admin key. Omitted fields are unchanged; a null ``expires_at`` is never."""

    name: Name | None = None
    role: Role | None = None
    expires_at: AwareDatetime | None = None


class AdminKeyOut(KeyOut):
    """An admin key as shown after its creation."""

    role: Role


class NewAdminKeyOut(NewKeyOut):
    """The response that shows a new admin key, once."""

    role: Role


class KeyRotate(Strict):
    """A rotation; ``grace_s`` is the time in seconds for which the old keys stay valid."""

    grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)
