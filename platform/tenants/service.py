"""Tenants for operators: create with a key, rename, suspend, take back, and give a new key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.platform.apps.control_events import ProgramInbox
from fairserve.platform.auth import Authenticator, Principal
from fairserve.platform.db import audit, keys
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.session import after_commit
from fairserve.platform.errors import ConflictError, NotFoundError
from fairserve.platform.tenants.schemas import TenantCreate, TenantPatch


class Tenants:
    """All tenants, as seen by one admin request."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        authenticator: Authenticator,
        programs: ProgramInbox,
    ) -> None:
        self._session = session
        self._principal = principal
        self._authenticator = authenticator
        self._programs = programs

    def get(self, tenant_id: str, *, lock: bool = False) -> Tenant:
        """One tenant. Raises NotFoundError."""
        statement = select(Tenant).where(Tenant.id == tenant_id)
        if lock:
            statement = statement.with_for_update()
        tenant = self._session.scalars(statement).one_or_none()
        if tenant is None:
            raise NotFoundError("there is no such tenant", param="tenant_id")
        return tenant

    def page(self, limit: int, offset: int) -> tuple[Sequence[Tenant], int]:
        """A part of the tenants, oldest first, and how many there are."""
        statement = select(Tenant).order_by(Tenant.created_at, Tenant.id)
        rows = self._session.scalars(statement.limit(limit).offset(offset)).all()
        return rows, self._session.scalar(select(func.count(Tenant.id))) or 0

    def create(self, body: TenantCreate) -> tuple[Tenant, keys.IssuedKey]:
        """A new tenant with its key."""
        self._check_name(body.name)
        tenant = Tenant(id=new_id("tn"), name=body.name, created_at=utc_now(), suspended_at=None)
        self._session.add(tenant)
        self._session.flush()
        key = self._issue(tenant)
        self._audit("tenant.create", tenant, None, key=key.row.prefix)
        return tenant, key

    def change(self, tenant_id: str, body: TenantPatch) -> Tenant:
        """Rename, suspend or take back. A suspended tenant's keys do not work, and its programs end."""
        tenant = self.get(tenant_id, lock=True)
        before = _audited(tenant)
        if body.name is not None and body.name != tenant.name:
            self._check_name(body.name)
            tenant.name = body.name
        if body.suspended is not None and body.suspended != (tenant.suspended_at is not None):
            tenant.suspended_at = utc_now() if body.suspended else None
        self._session.flush()
        self._audit("tenant.change", tenant, before)
        if body.suspended:
            after_commit(
                self._session,
                lambda: self._programs.cancel_of("its tenant is suspended", tenant_id=tenant_id),
            )
        after_commit(self._session, lambda: self._authenticator.forget(tenant_id=tenant_id))
        return tenant

    def rotate_keys(self, tenant_id: str) -> keys.IssuedKey:
        """A new tenant key in place of all others; the apps' keys stay."""
        tenant = self.get(tenant_id, lock=True)
        key = self._issue(tenant)
        now = utc_now()
        keys.end_others(self._session, key.row, now, now=now)
        self._audit("tenant.rotate_keys", tenant, None, key=key.row.prefix)
        after_commit(self._session, lambda: self._authenticator.forget(tenant_id=tenant_id))
        return key

    def _check_name(self, name: str) -> None:
        if self._session.scalars(select(Tenant.id).where(Tenant.name == name)).first():
            raise ConflictError("there is a tenant of this name", param="name")

    def _issue(self, tenant: Tenant) -> keys.IssuedKey:
        return keys.issue(self._session, self._authenticator.hasher, "tenant", tenant_id=tenant.id)

    def _audit(
        self, action: str, tenant: Tenant, before: dict[str, Any] | None, **more: str
    ) -> None:
        audit.record(
            self._session,
            self._principal,
            action,
            tenant.id,
            tenant_id=tenant.id,
            before=before,
            after=_audited(tenant) | more,
        )


def _audited(tenant: Tenant) -> dict[str, Any]:
    return {"name": tenant.name, "suspended": tenant.suspended_at is not None}
