"""Operations on tenants: create with a key, change, suspend, delete, restore; and their keys."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit, keys
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.names import named
from fairserve.platform.db.schemas import NamedPaging
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.apps.control_events import tenant_changed
from fairserve.platform.tenancy.apps.inboxes import ControlInbox, ProgramInbox
from fairserve.platform.tenancy.auth import Authenticator, Principal
from fairserve.platform.tenancy.keys.service import KeyRing
from fairserve.platform.tenancy.parts import TenancyParts
from fairserve.platform.tenancy.quotas import repository as contracts
from fairserve.platform.tenancy.quotas import service as contract_service
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import TenantCreate, TenantOut, TenantPatch


class Tenants:
    """The tenants within one admin request."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        authenticator: Authenticator,
        control: ControlInbox,
        programs: ProgramInbox,
        retention: timedelta,
    ) -> None:
        self._session = session
        self._principal = principal
        self._authenticator = authenticator
        self._control = control
        self._programs = programs
        self._retention = retention

    def get(self, tenant_id: str) -> Tenant:
        """Return one tenant, deleted or not. Raises NotFoundError."""
        return self._get(tenant_id)

    def page(self, query: NamedPaging) -> tuple[list[TenantOut], int]:
        """Return a page of the matching tenants, oldest first, and their number."""
        deleted = Tenant.deleted_at.is_not(None)
        which = [deleted if query.deleted else ~deleted, *named(Tenant.name, query.name)]
        statement = select(Tenant).where(*which).order_by(Tenant.created_at, Tenant.id)
        rows = self._session.scalars(statement.limit(query.limit).offset(query.offset)).all()
        total = self._session.scalar(select(func.count(Tenant.id)).where(*which)) or 0
        return self._describe(rows), total

    def create(self, body: TenantCreate) -> tuple[Tenant, keys.IssuedKey]:
        """Create a tenant with a key."""
        self._check_name(body.name)
        tenant = Tenant(
            id=new_id("tn"),
            name=body.name,
            weight=body.weight,
            levels=body.levels,
            created_at=utc_now(),
        )
        self._session.add(tenant)
        self._session.flush()
        if body.contract is not None:
            self._set_contract(tenant, body.contract)
        key = self._key_ring(tenant).issue()
        self._audit("tenant.create", tenant, None)
        if tenant.weight != 1.0 or tenant.levels is not None:
            self._notify_control(tenant)
        return tenant, key

    def change(self, tenant_id: str, body: TenantPatch) -> Tenant:
        """Change name, weight, levels or contract, suspend or resume. Keys of a suspended tenant do
        not work, and its programs end.
        """
        tenant = self._get(tenant_id, lock=True, live=True)
        before = self._audited(tenant)
        if body.name is not None and body.name != tenant.name:
            self._check_name(body.name)
            tenant.name = body.name
        known = tenant_changed(tenant)
        if body.weight is not None:
            tenant.weight = body.weight
        if "levels" in body.model_fields_set:
            tenant.levels = body.levels
        if tenant_changed(tenant) != known:
            self._notify_control(tenant)
        if body.suspended is not None and body.suspended != (tenant.suspended_at is not None):
            tenant.suspended_at = utc_now() if body.suspended else None
        if "contract" in body.model_fields_set:
            self._set_contract(tenant, body.contract)
        self._session.flush()
        self._audit("tenant.change", tenant, before)
        if body.suspended:
            self._stop_programs(tenant_id, "its tenant is suspended")
        self._forget_keys(tenant_id)
        return tenant

    def delete(self, tenant_id: str) -> Tenant:
        """Mark a tenant as deleted: its keys and programs end, its name is free. Idempotent."""
        tenant = self._get(tenant_id, lock=True)
        if tenant.deleted_at is None:
            before = self._audited(tenant)
            tenant.deleted_at = utc_now()
            self._session.flush()
            self._audit("tenant.delete", tenant, before)
            self._stop_programs(tenant_id, "its tenant was deleted")
            self._forget_keys(tenant_id)
        return tenant

    def restore(self, tenant_id: str) -> Tenant:
        """Restore a deleted tenant unchanged. Raises ConflictError if its name is taken."""
        tenant = self._get(tenant_id, lock=True)
        if tenant.deleted_at is not None:
            self._check_name(tenant.name)
            before = self._audited(tenant)
            tenant.deleted_at = None
            self._session.flush()
            self._audit("tenant.restore", tenant, before)
            self._forget_keys(tenant_id)
        return tenant

    def keys_of(self, tenant_id: str, *, change: bool = False, live: bool = False) -> KeyRing:
        """Return a tenant's own keys, without its apps'; ``change`` locks out other writers."""
        return self._key_ring(self._get(tenant_id, lock=change, live=live))

    def describe(self, tenant: Tenant) -> TenantOut:
        """Return the API's view of a tenant."""
        return self._describe([tenant])[0]

    # --- parts ------------------------------------------------------------------------------------

    def _get(self, tenant_id: str, *, lock: bool = False, live: bool = False) -> Tenant:
        statement = select(Tenant).where(Tenant.id == tenant_id)
        if lock:
            statement = statement.with_for_update()
        tenant = self._session.scalars(statement).one_or_none()
        if tenant is None:
            raise NotFoundError("there is no such tenant", param="tenant_id")
        if live and tenant.deleted_at is not None:
            raise ConflictError("the tenant is deleted; restore it first", code="deleted")
        return tenant

    def _check_name(self, name: str) -> None:
        taken = select(Tenant.id).where(Tenant.name == name, Tenant.deleted_at.is_(None))
        tenant_id = self._session.scalars(taken).first()
        if tenant_id is not None:
            raise ConflictError(
                f"tenant {tenant_id} has this name; choose another name, or create a key of that tenant"
                f" with POST /admin/tenants/{tenant_id}/keys",
                param="name",
            )

    def _set_contract(self, tenant: Tenant, body: ContractBody | None) -> None:
        holder = Holder(tenant.id, "tenant")
        contract_service.change(self._session, self._control, holder, body)

    def _key_ring(self, tenant: Tenant) -> KeyRing:
        return KeyRing(
            self._session, self._principal, self._authenticator, keys.KeyOwner(tenant.id)
        )

    def _notify_control(self, tenant: Tenant) -> None:
        event = tenant_changed(tenant)
        after_commit(self._session, lambda: self._control.post(event))

    def _stop_programs(self, tenant_id: str, reason: str) -> None:
        after_commit(self._session, lambda: self._programs.cancel_of(reason, tenant_id=tenant_id))

    def _forget_keys(self, tenant_id: str) -> None:
        after_commit(self._session, lambda: self._authenticator.forget(tenant_id=tenant_id))

    def _audit(self, action: str, tenant: Tenant, before: dict[str, Any] | None) -> None:
        audit.record(
            self._session,
            self._principal,
            action,
            tenant.id,
            tenant_id=tenant.id,
            before=before,
            after=self._audited(tenant),
        )

    def _audited(self, tenant: Tenant) -> dict[str, Any]:
        return self.describe(tenant).model_dump(mode="json", exclude={"id", "purge_after"})

    def _describe(self, tenants: Collection[Tenant]) -> list[TenantOut]:
        found = contracts.of_tenants(self._session, [tenant.id for tenant in tenants])
        return [
            _out(tenant, found.get(Holder(tenant.id, "tenant")), self._retention)
            for tenant in tenants
        ]


def _out(tenant: Tenant, contract: Contract | None, retention: timedelta) -> TenantOut:
    return TenantOut(
        id=tenant.id,
        name=tenant.name,
        weight=tenant.weight,
        levels=tenant.levels,
        contract=contract_service.shown(contract),
        created_at=tenant.created_at,
        suspended_at=tenant.suspended_at,
        deleted_at=tenant.deleted_at,
        purge_after=None if tenant.deleted_at is None else tenant.deleted_at + retention,
    )


def tenants_of(parts: TenancyParts, session: Session, principal: Principal) -> Tenants:
    """Return the tenants in a session."""
    return Tenants(
        session,
        principal,
        parts.authenticator,
        parts.control,
        parts.programs,
        timedelta(days=parts.settings.ledger_retention_days),
    )
