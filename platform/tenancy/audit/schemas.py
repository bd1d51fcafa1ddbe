"""The audit log as the API shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel

from fairserve.platform.db.schemas import Name, ObjectId, Paging


class AuditQuery(Paging):
    """Which entries to list; all that is given must fit."""

    tenant: ObjectId | None = None
    action: Name | None = None
    """Such as ``app.change``."""
    target: Name | None = None
    """The id of what was changed; of a user, the user's id."""
    actor: Name | None = None
    """The visible prefix of a key, or its id."""
    since: AwareDatetime | None = None


class AuditOut(BaseModel):
    """One change: who made it, and what it changed."""

    id: str
    at: datetime
    actor: str
    actor_key_id: str | None
    tenant: str | None
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
