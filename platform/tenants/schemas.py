"""Bodies of ``/admin/tenants`` and ``/admin/users``."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from fairserve.platform.db.schemas import KeyOut, Name, ObjectId, Paging, Strict


class TenantCreate(Strict):
    """A new tenant."""

    name: Name


class TenantPatch(Strict):
    """Changes of a tenant; what is left out stays."""

    name: Name | None = None
    suspended: bool | None = None


class TenantOut(BaseModel):
    """A tenant."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    created_at: datetime
    suspended_at: datetime | None


class TenantCreated(TenantOut):
    """A new tenant with its key, shown once."""

    key: KeyOut
    api_key: str = Field(repr=False)


class UserQuery(Paging):
    """Which users to list."""

    tenant: ObjectId | None = None
    blocked: bool | None = None


class UserPut(Strict):
    """What shall hold for a user; what is left out returns to its default."""

    weight: float = Field(1.0, ge=0.01, le=100)
    """2 is entitled to twice the service of 1."""
    rpm: int | None = Field(None, ge=1, le=1_000_000)
    """Replaces the app's ``user_rpm``; null leaves that in force."""
    blocked: bool = False


class UserOut(BaseModel):
    """The settings of one end user."""

    tenant_id: str
    user: str
    weight: float
    rpm: int | None
    blocked: bool
    updated_at: datetime
