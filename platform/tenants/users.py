"""``/admin/users``: an operator's settings for end users. Users without any are not listed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from sqlalchemy import ColumnElement, func, select

from fairserve.platform.apps.control_events import ControlInbox, user_changed
from fairserve.platform.auth import AdminPrincipal, require_admin
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import EndUser, Tenant
from fairserve.platform.db.schemas import Page, UserId
from fairserve.platform.db.session import ReadSession, WriteSession, after_commit
from fairserve.platform.errors import NotFoundError
from fairserve.platform.tenants.schemas import UserOut, UserPut, UserQuery

router = APIRouter(prefix="/admin/users")


@router.get("", dependencies=[Depends(require_admin)])
def list_users(session: ReadSession, query: Annotated[UserQuery, Query()]) -> Page[UserOut]:
    """Users with settings of their own, by tenant and id."""
    conditions: list[ColumnElement[bool]] = []
    if query.tenant is not None:
        conditions.append(EndUser.tenant_id == query.tenant)
    if query.blocked is not None:
        conditions.append(EndUser.blocked == query.blocked)
    rows = session.scalars(
        select(EndUser)
        .where(*conditions)
        .order_by(EndUser.tenant_id, EndUser.external_id)
        .limit(query.limit)
        .offset(query.offset)
    )
    total = session.scalar(select(func.count(EndUser.external_id)).where(*conditions)) or 0
    return Page(
        items=[_out(row) for row in rows], total=total, limit=query.limit, offset=query.offset
    )


@router.put("/{tenant_id}/{user:path}")
def change_user(
    tenant_id: str,
    user: Annotated[UserId, Path()],
    body: UserPut,
    request: Request,
    session: WriteSession,
    principal: AdminPrincipal,
) -> UserOut:
    """Set a user's weight, limit and block; holds for the next call."""
    if session.scalars(select(Tenant.id).where(Tenant.id == tenant_id)).first() is None:
        raise NotFoundError("there is no such tenant", param="tenant_id")
    row = session.get(EndUser, (tenant_id, user))
    before = _audited(row) if row is not None else None
    if row is None:
        row = EndUser(tenant_id=tenant_id, external_id=user)
        session.add(row)
    row.weight, row.rpm, row.blocked = body.weight, body.rpm, body.blocked
    row.updated_at = utc_now()
    session.flush()
    audit.record(
        session,
        principal,
        "user.change",
        user,
        tenant_id=tenant_id,
        before=before,
        after=_audited(row),
    )
    control: ControlInbox = request.app.state.control
    event = user_changed(row)
    after_commit(session, lambda: control.post(event))
    return _out(row)


def _audited(row: EndUser) -> dict[str, Any]:
    return {"weight": row.weight, "rpm": row.rpm, "blocked": row.blocked}


def _out(row: EndUser) -> UserOut:
    return UserOut(
        tenant_id=row.tenant_id,
        user=row.external_id,
        weight=row.weight,
        rpm=row.rpm,
        blocked=row.blocked,
        updated_at=row.updated_at,
    )
