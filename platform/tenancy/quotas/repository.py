"""Queries on quotas. Callers check that they may access the subjects that they name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from fairserve.platform.db.contracts import Contract
from fairserve.throttling.quotas.quota import QuotaScope


class Holder(NamedTuple):
    """The subject of a quota, which is its primary key. Unused parts are empty."""

    tenant_id: str
    scope: QuotaScope
    app_id: str = ""
    user_id: str = ""


def get(session: Session, holder: Holder) -> Contract | None:
    """Return the quotas of a subject; None if it has no limit."""
    return session.get(Contract, tuple(holder))


def of_tenants(session: Session, tenant_ids: Collection[str]) -> dict[Holder, Contract]:
    """Return the quotas of tenants themselves."""
    return _found(session, Contract.tenant_id.in_(tenant_ids), Contract.scope == "tenant")


def of_apps(session: Session, app_ids: Collection[str]) -> dict[Holder, Contract]:
    """Return the quotas of apps as a whole, and of each of their users."""
    return _found(session, Contract.app_id.in_(app_ids))


def of_users(session: Session, users: Collection[tuple[str, str]]) -> dict[Holder, Contract]:
    """Return the quotas of (tenant, user) pairs; may include other combinations of these ids."""
    return _found(
        session,
        Contract.scope == "user",
        Contract.tenant_id.in_({tenant for tenant, _ in users}),
        Contract.user_id.in_({user for _, user in users}),
    )


def all_contracts(session: Session) -> Sequence[Contract]:
    """Return the quotas of all subjects in a stable order."""
    columns = (Contract.tenant_id, Contract.scope, Contract.app_id, Contract.user_id)
    return session.scalars(select(Contract).order_by(*columns)).all()


def _found(session: Session, *conditions: ColumnElement[bool]) -> dict[Holder, Contract]:
    return {
        Holder(row.tenant_id, row.scope, row.app_id, row.user_id): row  # type: ignore[arg-type]  # the column holds no other scope
        for row in session.scalars(select(Contract).where(*conditions))
    }
