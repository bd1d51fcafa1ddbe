"""``/admin/alarms`` for operators, and ``/v1/alarms``: what is wrong for a tenant's own calls."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from fairserve.platform.background.alarms import store
from fairserve.platform.background.alarms.alarm import Alarm
from fairserve.platform.background.alarms.schemas import AlarmOut, AlarmQuery, alarm_out
from fairserve.platform.background.alarms.watch import AlarmWatch
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.schemas import Page
from fairserve.platform.db.session import WriteSession, after_commit
from fairserve.platform.tenancy.principals import AdminPrincipal, TenantPrincipal, require_admin

router = APIRouter()


@router.get("/admin/alarms", dependencies=[Depends(require_admin)])
async def list_alarms(request: Request, query: Annotated[AlarmQuery, Query()]) -> Page[AlarmOut]:
    """Return the current alarms, bad ones first, or the resolved ones, the latest first.

    Current alarms are served from memory, also while the database is away.
    """
    return await alarms_page(request, query, query.tenant, None)


@router.get("/v1/alarms")
async def list_own_alarms(
    request: Request, principal: TenantPrincipal, query: Annotated[AlarmQuery, Query()]
) -> Page[AlarmOut]:
    """Return the alarms about the tenant's calls: the current ones, or those of the past."""
    tenant = principal.tenant_id
    return await alarms_page(request, query, tenant, tenant)


@router.post("/admin/alarms/{alarm_id}/acknowledge")
def acknowledge_alarm(
    alarm_id: str, request: Request, session: WriteSession, principal: AdminPrincipal
) -> AlarmOut:
    """Acknowledge an open alarm: an operator takes care of it."""
    alarm = store.acknowledge(session, principal, alarm_id)
    watch: AlarmWatch = request.app.state.alarms
    by, at = alarm.acknowledged_by, alarm.acknowledged_at
    after_commit(session, lambda: watch.acknowledged(alarm_id, by, at or 0.0))
    return alarm_out(alarm)


async def alarms_page(
    request: Request, query: AlarmQuery, about: str | None, reader: str | None
) -> Page[AlarmOut]:
    """Return a page of the alarms about one or all tenants, as their reader sees them."""
    watch: AlarmWatch = request.app.state.alarms
    if query.state == "resolved":
        found, total = await asyncio.to_thread(_past, request, query, about)
    else:
        current = [each for each in watch.current(about) if query.kind in (None, each.key.kind)]
        total = len(current)
        found = current[query.offset : query.offset + query.limit]
    return Page.of([alarm_out(each, reader) for each in found], total, query)


def _past(request: Request, query: AlarmQuery, about: str | None) -> tuple[list[Alarm], int]:
    with request.app.state.session_factory() as session:
        return store.past(read_only(session), query, about)
