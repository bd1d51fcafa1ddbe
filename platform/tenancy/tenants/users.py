"""``/admin/users``: settings of end users. Users with defaults only are not listed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.identity import EndUser, Tenant
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import Page, UserId, view_of
from fairserve.platform.db.session import ReadSession, WriteSession, after_commit
from fairserve.platform.tenancy.apps.control_events import user_changed
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.parts import TenancyParts
from fairserve.platform.tenancy.principals import AdminPrincipal, require_admin
from fairserve.platform.tenancy.quotas import repository as contracts
from fairserve.platform.tenancy.quotas import service as contract_service
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import UserOut, UserPut, UserQuery
from fairserve.scheduling.events import UserChanged, UserStopped

router = APIRouter(prefix="/admin/users")

User = Annotated[UserId, Path()]


@router.get("", dependencies=[Depends(require_admin)])
def list_users(session: ReadSession, query: Annotated[UserQuery, Query()]) -> Page[UserOut]:
    """Return the users with settings, by tenant and id."""
    conditions: list[ColumnElement[bool]] = []
    if query.tenant is not None:
        conditions.append(EndUser.tenant_id == query.tenant)
    if query.user is not None:
        # Not LIKE, which ignores case on SQLite.
        beginning = func.substr(EndUser.external_id, 1, len(query.user))
        conditions.append(beginning == query.user)
    if query.blocked is not None:
        conditions.append(EndUser.blocked == query.blocked)
    users = select(EndUser).where(*conditions).order_by(EndUser.tenant_id, EndUser.external_id)
    rows, total = read_page(session, users, query)
    found = contracts.of_users(session, [(row.tenant_id, row.external_id) for row in rows])
    items = [_out(row, found.get(_holder(row.tenant_id, row.external_id))) for row in rows]
    return Page.of(items, total, query)


@router.get("/{tenant_id}/{user:path}", dependencies=[Depends(require_admin)])
def read_user(tenant_id: str, user: User, session: ReadSession) -> UserOut:
    """Return one user; defaults if it has no settings."""
    _tenant(session, tenant_id)
    return _described(session, tenant_id, user)


@router.put("/{tenant_id}/{user:path}")
def change_user(
    tenant_id: str,
    user: User,
    body: UserPut,
    request: Request,
    session: WriteSession,
    principal: AdminPrincipal,
) -> UserOut:
    """Set a user's weights, limits and block; effective from the next call.

    A block cancels the user's queued calls, too; ``on_block`` chooses what else, or nothing.
    """
    _live_tenant(session, tenant_id)
    row = _locked(session, tenant_id, user)
    stops = body.blocked and (row is None or not row.blocked or "on_block" in body.model_fields_set)
    before = _audited(session, tenant_id, user)
    if row is None:
        row = EndUser(tenant_id=tenant_id, external_id=user)
        session.add(row)
    row.weight, row.rpm, row.blocked = body.weight, body.rpm, body.blocked
    row.priority_weight = body.priority_weight
    if "managed_by" in body.model_fields_set:
        row.managed_by = body.managed_by
    row.updated_at = utc_now()
    session.flush()
    control: ControlInbox = request.app.state.control
    event = user_changed(row)
    after_commit(session, lambda: control.post(event))
    block: dict[str, Any] = {}
    if stops:
        block = {"on_block": body.on_block, "reason": body.reason}
        after_commit(session, lambda: _stop(request.app.state.tenancy, tenant_id, user, body))
    _set_contract(session, control, tenant_id, user, body.contract)
    _audit(session, principal, "user.change", tenant_id, user, before, block)
    return _described(session, tenant_id, user)


@router.delete("/{tenant_id}/{user:path}")
def reset_user(
    tenant_id: str, user: User, request: Request, session: WriteSession, principal: AdminPrincipal
) -> UserOut:
    """Reset a user to the defaults; idempotent."""
    _live_tenant(session, tenant_id)
    row = _locked(session, tenant_id, user)
    if row is not None:
        before = _audited(session, tenant_id, user)
        session.delete(row)
        session.flush()
        control: ControlInbox = request.app.state.control
        event = UserChanged(tenant_id, user)
        after_commit(session, lambda: control.post(event))
        _set_contract(session, control, tenant_id, user, None)
        _audit(session, principal, "user.reset", tenant_id, user, before)
    return _described(session, tenant_id, user)


def _stop(parts: TenancyParts, tenant_id: str, user: str, body: UserPut) -> None:
    """Stop the accepted calls of a user that is blocked now, as far as the operator chose."""
    if body.on_block == "finish":
        return
    everything = body.on_block == "cancel_all"
    parts.control.post(UserStopped(tenant_id, user, running=everything))
    if everything:
        parts.programs.cancel_of("its user was blocked", tenant_id=tenant_id, user=user)


def _tenant(session: Session, tenant_id: str) -> Tenant:
    tenant = session.get(Tenant, tenant_id)
    if tenant is None:
        raise NotFoundError("there is no such tenant", param="tenant_id")
    return tenant


def _live_tenant(session: Session, tenant_id: str) -> None:
    if _tenant(session, tenant_id).deleted_at is not None:
        raise ConflictError("the tenant is deleted; restore it first", code="deleted")


def _locked(session: Session, tenant_id: str, user: str) -> EndUser | None:
    """Return the settings as another request left them last, which control gets as a whole."""
    key = (tenant_id, user)
    return session.get(EndUser, key, populate_existing=True, with_for_update=True)


def _holder(tenant_id: str, user: str) -> Holder:
    return Holder(tenant_id, "user", user_id=user)


def _set_contract(
    session: Session, control: ControlInbox, tenant_id: str, user: str, body: ContractBody | None
) -> None:
    holder = _holder(tenant_id, user)
    contract_service.change(session, control, holder, body, replace=True)


def _audit(
    session: Session,
    principal: Principal,
    action: str,
    tenant_id: str,
    user: str,
    before: dict[str, Any] | None,
    block: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    after = {**_audited(session, tenant_id, user), **block}
    audit.record(session, principal, action, user, tenant_id=tenant_id, before=before, after=after)


def _audited(session: Session, tenant_id: str, user: str) -> dict[str, Any]:
    described = _described(session, tenant_id, user)
    return described.model_dump(mode="json", exclude={"tenant_id", "user", "updated_at"})


def _described(session: Session, tenant_id: str, user: str) -> UserOut:
    contract = contracts.get(session, _holder(tenant_id, user))
    row = session.get(EndUser, (tenant_id, user))
    if row is None:
        row = EndUser(tenant_id=tenant_id, external_id=user, weight=1.0, blocked=False)
    return _out(row, contract)


def _out(row: EndUser, contract: Contract | None) -> UserOut:
    return view_of(UserOut, row, user=row.external_id, contract=contract_service.shown(contract))
