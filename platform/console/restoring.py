"""Restore limits that an entry of the audit log changed, by the service that changed them.

Of a change of a tenant, an app or a user all limits are restored, and nothing else. One that was changed
since is not overwritten: then nothing is restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError
from fairserve.platform.console.limit_changes import LimitChange, limit_text
from fairserve.platform.console.pages.client import read_put
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.tenancy.apps.schemas import AppPatch
from fairserve.platform.tenancy.apps.service import Apps
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.tenants.schemas import TenantPatch, UserPut
from fairserve.platform.tenancy.tenants.service import Tenants
from fairserve.platform.tenancy.tenants.users import change_user, read_user


def restore(
    request: Request,
    session: Session,
    principal: Principal,
    entry: AuditEntry,
    limits: Sequence[LimitChange],
) -> None:
    """Set the limits of an entry to their former values.

    Raises ConflictError if one was changed since, and NotFoundError if their subject is gone.
    """
    parts, tenant, target = request.app.state.tenancy, entry.tenant_id or "", entry.target
    if entry.action == "user.change":
        _require_unchanged(read_user(tenant, target, session), limits)
        put = read_put(session, tenant, target).model_dump(mode="json", exclude_unset=True)
        body = UserPut.model_validate(_former(limits, put))
        change_user(tenant, target, body, request, session, principal)
    elif entry.action == "tenant.change":
        tenants = Tenants(parts, session, principal)
        _require_unchanged(tenants.describe(tenants.get(target, lock=True)), limits)
        tenants.change(target, TenantPatch.model_validate(_former(limits, {})))
    else:
        apps = Apps(parts, session, replace(principal, tenant_id=tenant))
        _require_unchanged(apps.describe(apps.get(target, lock=True)), limits)
        apps.change(target, AppPatch.model_validate(_former(limits, {})))


def _require_unchanged(held: BaseModel, limits: Iterable[LimitChange]) -> None:
    """Raise ConflictError unless the limits still have the values that the change set."""
    values = held.model_dump(mode="json")
    for each in limits:
        group, _, name = each.field.rpartition(".")
        now = (values[group] if group else values)[name]
        if now != each.after:
            raise ConflictError(
                f"{each.field} is {limit_text(now)} now, not {limit_text(each.after)}: it was changed"
                " since. Nothing was restored",
                code="changed_since",
            )


def _former(limits: Iterable[LimitChange], body: dict[str, Any]) -> dict[str, Any]:
    """Return a body of the API with the former values of the limits."""
    for each in limits:
        group, _, name = each.field.rpartition(".")
        (body.setdefault(group, {}) if group else body)[name] = each.before
    return body
