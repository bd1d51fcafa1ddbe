"""Pages of clients, which are found by the names of their tenants and apps, too."""

from __future__ import annotations

import asyncio

from fairserve.platform.control.port import ControlPort
from fairserve.platform.control.schemas import ClientQuery
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.names import ids_named
from fairserve.platform.monitoring.client_views import ClientPage


async def clients_page(
    control: ControlPort, sessions: SessionFactory, query: ClientQuery
) -> ClientPage:
    """Return the clients of the last half hour, those with most service first."""
    named = await asyncio.to_thread(_named, sessions, query) if query.query else ()
    return await control.clients(
        query.tenant,
        limit=query.limit,
        offset=query.offset,
        sort=query.sort,
        query=query.query,
        named=named,
    )


def _named(sessions: SessionFactory, query: ClientQuery) -> frozenset[str]:
    with sessions() as session:
        return ids_named(read_only(session), query.query, query.tenant)
