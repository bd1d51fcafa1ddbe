"""Queries and answers of ``/v1/user-data``."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from fairserve.platform.db.schemas import TenantQuery, UserId


class UserDataQuery(TenantQuery):
    """User whose data it is."""

    user: UserId


class ErasedRows(BaseModel):
    """Numbers of rows about the user, by kind. The last four kinds stay under the pseudonym."""

    settings: int
    contracts: int
    programs: int
    open_interactions: int
    """Open interactions. A restart of the server ends them; the running server continues them."""
    exports: int
    """Report exports that may name the user, besides other contents."""
    audit: int
    """Entries of the audit log; their targets are the pseudonym now."""
    interactions: int
    calls: int
    refusals: int
    webhook_events: int


class ErasureOut(BaseModel):
    """Result of an erasure."""

    object: str = "user_data.erasure"
    pseudonym: str
    """Name under which usage stays."""
    erased_at: datetime
    """Time of the erasure; calls accepted later belong to the user again."""
    erased: ErasedRows
