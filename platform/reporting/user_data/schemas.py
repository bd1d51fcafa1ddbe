"""Query and answers of ``/v1/user-data``."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from fairserve.platform.db.schemas import TenantQuery, UserId


class UserDataQuery(TenantQuery):
    """User whose data it is."""

    user: UserId


class ErasedRows(BaseModel):
    """How many rows were about the user, by kind. The last four are kept under the pseudonym."""

    settings: int
    contracts: int
    programs: int
    open_interactions: int
    """A restart of the server ends them; the running server continues them."""
    exports: int
    """Report exports that might name the user, whatever else is in them."""
    audit: int
    """Entries of the audit log; their targets are the pseudonym now."""
    interactions: int
    calls: int
    refusals: int
    webhook_events: int


class ErasureOut(BaseModel):
    """What was erased."""

    object: str = "user_data.erasure"
    pseudonym: str
    """Under which usage stays."""
    erased_at: datetime
    """What was accepted later belongs to the user again."""
    erased: ErasedRows
