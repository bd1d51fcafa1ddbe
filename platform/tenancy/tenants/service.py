"""Operations on tenants: create with a key, change, suspend, delete, restore; and their keys."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, select

from fairserve.platform.db import keys
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.names import named
from fairserve.platform.db.schemas import NamedPaging, view_of
from fairserve.platform.tenancy.apps.control_events import tenant_changed
from fairserve.platform.tenancy.owned import OwnedRows
from fairserve.platform.tenancy.quotas import repository as contracts
from fairserve.platform.tenancy.quotas import service as contract_service
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import TenantCreate, TenantOut, TenantPatch


class Tenants(OwnedRows[Tenant, TenantOut]):
    """The tenants within one admin request."""

    word = "tenant"

    def create(self, body: TenantCreate) -> tuple[Tenant, keys.IssuedKey]:
        """Create a tenant with a key."""
        self._check_name(body.name)
        tenant = Tenant(
            id=new_id("tn"),
            name=body.name,
            weight=body.weight,
            levels=body.levels,
            managed_by=body.managed_by,
            created_at=utc_now(),
        )
        self._session.add(tenant)
        self._session.flush()
        if body.contract is not None:
            self._set_contract(tenant, body.contract)
        key = self._key_ring(tenant).issue()
        self._audit("create", tenant, None)
        if tenant.weight != 1.0 or tenant.levels is not None:
            self._post(tenant_changed(tenant))
        return tenant, key

    def change(self, tenant_id: str, body: TenantPatch) -> Tenant:
        """Change name, weight, levels or contract, suspend or resume. Keys of a suspended tenant do
        not work, and its programs end.
        """
        tenant = self.get(tenant_id, lock=True, live=True)
        before = self._audited(tenant)
        if body.name is not None and body.name != tenant.name:
            self._check_name(body.name)
            tenant.name = body.name
        known = tenant_changed(tenant)
        if body.weight is not None:
            tenant.weight = body.weight
        if "levels" in body.model_fields_set:
            tenant.levels = body.levels
        if "managed_by" in body.model_fields_set:
            tenant.managed_by = body.managed_by
        if (event := tenant_changed(tenant)) != known:
            self._post(event)
        self._set_suspended(tenant, body.suspended)
        if "contract" in body.model_fields_set:
            self._set_contract(tenant, body.contract)
        self._session.flush()
        self._audit("change", tenant, before)
        if body.suspended:
            self._stop_programs(tenant, "is suspended")
        self._forget_keys(tenant)
        return tenant

    def describe_all(self, rows: Sequence[Tenant]) -> list[TenantOut]:
        """Return the API's view of tenants."""
        found = contracts.of_tenants(self._session, [tenant.id for tenant in rows])
        return [
            view_of(
                TenantOut,
                tenant,
                contract=contract_service.shown(found.get(Holder(tenant.id, "tenant"))),
                purge_after=tenant.deleted_at and tenant.deleted_at + self._retention,
            )
            for tenant in rows
        ]

    # --- parts ------------------------------------------------------------------------------------

    def _find(self, row_id: str, *, lock: bool) -> Tenant | None:
        return self._session.get(Tenant, row_id, with_for_update=lock)

    def _listed(self, query: NamedPaging) -> Select[Tenant]:
        deleted = Tenant.deleted_at.is_not(None)
        which = [deleted if query.deleted else ~deleted, *named(Tenant.name, query.name)]
        return select(Tenant).where(*which).order_by(Tenant.created_at, Tenant.id)

    def _key_owner(self, row: Tenant) -> keys.KeyOwner:
        return keys.KeyOwner(row.id)

    def _check_name(self, name: str) -> None:
        taken = select(Tenant).where(Tenant.name == name, Tenant.deleted_at.is_(None))
        tenant = self._session.scalars(taken).first()
        if tenant is not None:
            raise self._name_taken(tenant, f"tenant {tenant.id}", "/admin/tenants")

    def _set_contract(self, tenant: Tenant, body: ContractBody | None) -> None:
        holder = Holder(tenant.id, "tenant")
        contract_service.change(self._session, self._control, holder, body)
