"""Bodies of ``/admin/tenants`` and ``/admin/users``."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from fairserve.interactions.call import TenantLevels
from fairserve.platform.db.schemas import KeyOut, Name, ObjectId, Paging, Strict, UserId, Weight
from fairserve.platform.tenancy.quotas.schemas import ContractBody, ContractOut


class TenantCreate(Strict):
    """A new tenant."""

    name: Name
    weight: Weight = 1.0
    levels: TenantLevels | None = None
    """Levels by which its share is divided among its clients; null for those of the system."""
    contract: ContractBody | None = None


class TenantPatch(Strict):
    """Changes of a tenant; what is left out stays. A ``contract`` of null removes all its limits, and
    ``levels`` of null are those of the system.
    """

    name: Name | None = None
    weight: Weight | None = None
    levels: TenantLevels | None = None
    suspended: bool | None = None
    contract: ContractBody | None = None


class TenantOut(BaseModel):
    """A tenant."""

    id: str
    name: str
    weight: float
    levels: TenantLevels | None
    """Levels by which its share is divided; null for those of the system."""
    contract: ContractOut
    created_at: datetime
    suspended_at: datetime | None
    deleted_at: datetime | None
    purge_after: datetime | None
    """Until then a deleted one can be restored."""


class TenantCreated(TenantOut):
    """A new tenant with its key, shown once."""

    key: KeyOut
    api_key: str = Field(repr=False)


class UserQuery(Paging):
    """Which users to list; ``user`` is how their ids begin."""

    tenant: ObjectId | None = None
    user: UserId | None = None
    blocked: bool | None = None


class UserPut(Strict):
    """Settings of a user; a field that is left out returns to its default."""

    weight: Weight = 1.0
    rpm: int | None = Field(None, ge=1, le=1_000_000)
    """Replaces the app's ``user_rpm``; null leaves that in force."""
    blocked: bool = False
    contract: ContractBody | None = None


class UserOut(BaseModel):
    """The settings of one end user."""

    tenant_id: str
    user: str
    weight: float
    rpm: int | None
    blocked: bool
    contract: ContractOut
    updated_at: datetime | None
    """None: nobody has set anything."""
