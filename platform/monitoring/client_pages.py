"""Pages of clients with the names of their tenants and apps, in addition to ids."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import OperationalError

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.names import ids_named, names_of
from fairserve.platform.monitoring.client_views import ClientPage, ClientView
from fairserve.platform.monitoring.clients import ClientReading, Clients
from fairserve.platform.monitoring.flooding import find_floods, signs
from fairserve.platform.monitoring.schemas import ClientQuery, FloodingClient, FloodsOut


async def clients_page(
    reading: ClientReading, sessions: SessionFactory, query: ClientQuery
) -> ClientPage:
    """Return the asked page of the clients of a reading.

    While the database does not answer, a query finds ids and users, and no names.
    """
    named = await asyncio.to_thread(_named, sessions, query) if query.query else ()
    return reading.page(
        limit=query.limit,
        offset=query.offset,
        sort=query.sort,
        query=query.query,
        named=named,
    )


async def flooding_clients(
    clients: Clients, sessions: SessionFactory, tenant: str | None, limit: int
) -> FloodsOut:
    """Return the flooding clients of one or all tenants, with their names."""
    of_all, found = find_floods(await clients.read(tenant), limit)
    names = await asyncio.to_thread(_names, sessions, found) if found else {}
    return FloodsOut(
        items=[
            FloodingClient(client=each, signs=[sign.words for sign in signs(each, of_all)])
            for each in found
        ],
        queued_calls=sum(of_all.queues.values()),
        refused_calls=of_all.refused,
        names=names,
    )


def _names(sessions: SessionFactory, found: list[ClientView]) -> dict[str, str]:
    tenants, apps = {each.tenant for each in found}, {each.app for each in found}
    with sessions() as session:
        return names_of(read_only(session), tenants=tenants, apps=apps)


def _named(sessions: SessionFactory, query: ClientQuery) -> frozenset[str]:
    try:
        with sessions() as session:
            return ids_named(read_only(session), query.query, query.tenant)
    except OperationalError:
        return frozenset()
