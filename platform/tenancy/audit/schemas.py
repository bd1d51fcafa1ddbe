"""Query and body of ``/admin/audit``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel

from fairserve.platform.db.schemas import Name, ObjectId, Paging


class AuditQuery(Paging):
    """Filter of the entries; all given fields must match."""

    tenant: ObjectId | None = None
    action: Name | None = None
    """Action, for example ``app.change``."""
    target: Name | None = None
    """Id of the changed object; for a user, the user's id."""
    actor: Name | None = None
    """Visible prefix or id of the key, or ``oidc:`` and the id of a person."""
    since: AwareDatetime | None = None


class AuditOut(BaseModel):
    """A change, with its actor and the state before and after."""

    id: str
    at: datetime
    actor: str
    actor_key_id: str | None
    tenant: str | None
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
