"""Read and write stored responses. Every query is scoped to an app; the caller commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import delete, literal, select, update
from sqlalchemy.orm import Session, aliased

from fairserve.platform.db.leases import LeasedTable, RowLease
from fairserve.platform.db.responses import StoredResponse
from fairserve.platform.db.rows import delete_some, has_key

MAX_CHAIN = 1_000
"""Responses of one chain."""
UNFINISHED = ("queued", "in_progress")
RESPONSES = LeasedTable(
    StoredResponse, unfinished=UNFINISHED, attempts=None, fence=("status",), state="status"
)
_is = partial(has_key, StoredResponse)


class ResponseKey(NamedTuple):
    """Key of a stored response."""

    tenant: str
    app: str
    id: str


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A response of a chain, without its contents."""

    id: str
    previous_id: str | None
    size_bytes: int


def find(session: Session, key: ResponseKey) -> StoredResponse | None:
    """Return a response."""
    return session.get(StoredResponse, tuple(key))


def end(session: Session, key: ResponseKey, values: Mapping[str, Any]) -> bool:
    """Write the end of a response in the background; return false if it was deleted."""
    found = select(StoredResponse.id).where(_is(key), StoredResponse.status.in_(UNFINISHED))
    if session.execute(found.with_for_update()).first() is None:
        return False
    session.execute(update(StoredResponse).where(_is(key)).values(**values))
    return True


def lease(key: ResponseKey) -> RowLease[StoredResponse]:
    """Return the lease of the process that runs a response in the background, until it has ended."""
    names = ("tenant_id", "app_id", "id", "status")
    return RowLease(RESPONSES, dict(zip(names, (*key, UNFINISHED[0]), strict=True)))


def is_stopped(session: Session, key: ResponseKey, now: datetime) -> bool:
    """Return whether the process that ran a response ended before it."""
    found = select(StoredResponse.id).where(_is(key), RESPONSES.waiting(now))
    return session.scalar(found) is not None


def remove(session: Session, key: ResponseKey) -> bool:
    """Delete a response; return whether there was one."""
    found = session.execute(select(StoredResponse.id).where(_is(key))).first()
    session.execute(delete(StoredResponse).where(_is(key)))
    return found is not None


def chain(session: Session, key: ResponseKey) -> list[ChainLink]:
    """Return a response and those that it continues, the first one first; at most ``MAX_CHAIN`` + 1.

    The first one continues another only if that was deleted, or the chain is too long. One query.
    """
    row = StoredResponse
    columns = (row.id, row.previous_id, row.size_bytes)
    links = select(*columns, literal(1).label("depth")).where(_is(key)).cte(recursive=True)
    before = aliased(StoredResponse)
    links = links.union_all(
        select(before.id, before.previous_id, before.size_bytes, links.c.depth + 1).where(
            before.tenant_id == key.tenant,
            before.app_id == key.app,
            before.id == links.c.previous_id,
            links.c.depth <= MAX_CHAIN,
        )
    )
    rows = session.execute(select(links).order_by(links.c.depth.desc())).all()
    return [ChainLink(each.id, each.previous_id, each.size_bytes) for each in rows]


def items_of(session: Session, key: ResponseKey, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the items of responses of the key's app, input and output, in the order of ``ids``."""
    row = StoredResponse
    found: dict[str, list[dict[str, Any]]] = {}
    for start in range(0, len(ids), 500):
        query = select(row.id, row.items, row.response).where(
            row.tenant_id == key.tenant, row.app_id == key.app, row.id.in_(ids[start : start + 500])
        )
        for each in session.execute(query):
            found[each.id] = [*each.items, *each.response["output"]]
    return [item for name in ids for item in found.get(name, ())]


def delete_before(session: Session, time: datetime, *, max_rows: int = 1_000) -> int:
    """Delete responses that were created before ``time``; at most ``max_rows``."""
    return delete_some(session, StoredResponse, StoredResponse.created_at < time, max_rows)
