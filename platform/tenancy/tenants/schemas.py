"""Bodies of ``/admin/tenants`` and ``/admin/users``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from fairserve.interactions.call import TenantLevels
from fairserve.platform.db.schemas import (
    KeyOut,
    Managed,
    Name,
    NamePart,
    ObjectId,
    Paging,
    PriorityWeight,
    UserId,
    Weight,
)
from fairserve.platform.tenancy.quotas.schemas import ContractBody, ContractOut


class TenantCreate(Managed):
    """A new tenant."""

    name: Name
    weight: Weight = 1.0
    levels: TenantLevels | None = None
    """Levels that divide the tenant's share among its clients; null for the system's."""
    contract: ContractBody | None = None


class TenantPatch(Managed):
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
    managed_by: str | None
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


OnBlock = Literal["cancel_queued", "cancel_all", "finish"]


class UserPut(Managed):
    """Settings of a user; an omitted field is reset to its default, except for ``managed_by``."""

    weight: Weight = 1.0
    priority_weight: PriorityWeight | None = None
    """Weight of calls of the tier ``priority``, in place of the app's; null uses the app's."""
    rpm: int | None = Field(None, ge=1, le=1_000_000)
    """Calls per minute in place of the app's ``user_rpm``; null uses the app's."""
    blocked: bool = False
    on_block: OnBlock = "cancel_queued"
    """Effect of a block on accepted calls: it cancels the queued ones (the running ones end, the runs
    go no further), cancels all calls and runs, or lets all calls finish."""
    reason: NamePart = ""
    """Why the user is blocked, for the audit log."""
    contract: ContractBody | None = None


class UserOut(BaseModel):
    """The settings of one end user."""

    tenant_id: str
    user: str
    weight: float
    priority_weight: float | None
    rpm: int | None
    blocked: bool
    contract: ContractOut
    managed_by: str | None
    updated_at: datetime | None
    """Time of the last change; null if there was none."""
