"""Search of clients by the names of their tenants and apps, in addition to ids."""

from __future__ import annotations

import asyncio

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.names import ids_named
from fairserve.platform.monitoring.client_views import ClientPage
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.schemas import ClientQuery


async def clients_page(
    clients: Clients, sessions: SessionFactory, query: ClientQuery
) -> ClientPage:
    """Return the clients of the last half hour, sorted by service."""
    named = await asyncio.to_thread(_named, sessions, query) if query.query else ()
    return clients.page(
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
