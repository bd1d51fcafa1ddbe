"""Query and answers of ``/v1/user-data``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from fairserve.platform.db.base import NAME_CHARS
from fairserve.platform.db.schemas import TenantQuery


class UserDataQuery(TenantQuery):
    """Whose data. ``user`` holds any characters, as calls may name their users by."""

    user: Annotated[str, Field(min_length=1, max_length=NAME_CHARS)]


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
