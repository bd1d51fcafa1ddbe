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
    """Levels that divide the tenant's share among its clients; null for the system's."""
    contract: ContractBody | None = None


class TenantPatch(Strict):
    """Changes of a tenant; omitted fields are unchanged. A null ``contract`` removes all limits, and
    null ``levels`` are the system's.
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
    """Levels that divide the tenant's share among its clients; null for the system's."""
    contract: ContractOut
    created_at: datetime
    suspended_at: datetime | None
    deleted_at: datetime | None
    purge_after: datetime | None
    """Time until which a deleted tenant can be restored."""


class TenantCreated(TenantOut):
    """A new tenant with its key, shown once."""

    key: KeyOut
    api_key: str = Field(repr=False)


class UserQuery(Paging):
    """Filter of the list of users; ``user`` is a prefix of the id."""

    tenant: ObjectId | None = None
    user: UserId | None = None
    blocked: bool | None = None


class UserPut(Strict):
    """Settings of a user; an omitted field is reset to its default."""

    weight: Weight = 1.0
    rpm: int | None = Field(None, ge=1, le=1_000_000)
    """Calls per minute in place of the app's ``user_rpm``; null uses the app's."""
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
    """Time of the last change; null if there was none."""
