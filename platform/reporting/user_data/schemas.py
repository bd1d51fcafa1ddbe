"""Queries and responses of ``/v1/user-data``."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from fairserve.platform.db.schemas import TenantQuery, UserId


class UserDataQuery(TenantQuery):
    """Query that identifies a user."""

    user: UserId


class ErasedRows(BaseModel):
    """Numbers of rows about the user, by kind. The last four kinds are kept under the pseudonym."""

    settings: int
    contracts: int
    programs: int
    responses: int
    conversations: int
    open_interactions: int
    """Open interactions. The running server continues them; a restart ends them."""
    exports: int
    """Report exports that may name the user."""
    audit: int
    """Entries of the audit log, whose targets are replaced by the pseudonym."""
    interactions: int
    calls: int
    refusals: int
    webhook_events: int
    alarms: int


class ErasureOut(BaseModel):
    """Result of an erasure."""

    object: str = "user_data.erasure"
    pseudonym: str
    """Name under which usage is kept."""
    erased_at: datetime
    """Time of the erasure; calls accepted later are not affected."""
    erased: ErasedRows
