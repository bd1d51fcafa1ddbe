"""The stored responses of apps, within bounds (:mod:`fairserve.platform.serving.kept_rows`).

The texts of a user that was erased while its call ran are not stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import InvalidRequestError, NotFoundError
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.erasures import erased_since
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.responses import StoredResponse
from fairserve.platform.serving.claims import LEASE
from fairserve.platform.serving.in_database import read_in, write_in
from fairserve.platform.serving.kept_rows import KeptRows
from fairserve.platform.serving.responses import repository
from fairserve.platform.serving.responses.conversations import Conversations
from fairserve.platform.serving.responses.items import Item, response_of
from fairserve.platform.serving.responses.options import StoreOptions
from fairserve.platform.serving.responses.repository import (
    MAX_CHAIN,
    RESPONSES,
    UNFINISHED,
    ResponseKey,
)

ANSWERED = ("completed", "incomplete")
"""Statuses of responses that can be continued."""
MAX_REFERENCED = 100
"""Stored responses that the references of one request may lead to."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The items that a request continues, and the run of the last answer among them."""

    items: Sequence[Item] = ()
    run_id: str | None = None
    call_id: str | None = None
    user: str | None = None


class ResponseStore:
    """Reads and writes in threads. Methods raise UnavailableError while the database is down."""

    def __init__(
        self,
        sessions: SessionFactory,
        hasher: KeyHasher,
        conversations: Conversations,
        options: StoreOptions = StoreOptions(),
    ) -> None:
        self.conversations = conversations
        self.options = options
        self._sessions = sessions
        self._hasher = hasher
        self._bounds = KeptRows(
            StoredResponse,
            StoredResponse.created_at,
            of_app=options.of_app,
            of_tenant=options.of_tenant,
            size=StoredResponse.size_bytes,
            removable=StoredResponse.status.not_in(UNFINISHED),
        )

    async def find(self, key: ResponseKey) -> StoredResponse:
        """Return a response. Raises NotFoundError."""
        row = await read_in(self._sessions, lambda session: repository.find(session, key))
        if row is None:
            raise _unknown(key.id)
        return row

    async def chain(self, key: ResponseKey, require_size: Callable[[int], None]) -> Continued:
        """Return the items of a response and of all that it continues, and its run.

        ``require_size`` raises a FairServeError for too many bytes, before they are read. Raises
        NotFoundError for an unknown response, and InvalidRequestError for one that cannot be continued.
        """

        def read(session: Session) -> Continued:
            links = repository.chain(session, key)
            if not links:
                raise _unknown(key.id)
            if len(links) > MAX_CHAIN:
                raise _not_continued(f"continues more than {MAX_CHAIN} others")
            if links[0].previous_id is not None:
                raise _not_continued("continues one that was deleted")
            last = repository.find(session, key)
            if last is None:
                raise _unknown(key.id)
            if last.status not in ANSWERED:
                raise _not_continued("has no answer")
            if last.conversation_id is not None:
                raise _not_continued("belongs to a conversation; name that instead")
            require_size(sum(link.size_bytes for link in links))
            items = repository.items_of(session, key, [link.id for link in links])
            return Continued(items, last.run_id, last.call_id, last.user_id)

        return await read_in(self._sessions, read)

    async def resolved(
        self, tenant: str, app: str, items: list[Item], require_size: Callable[[int], None]
    ) -> list[Item]:
        """Return the items with the stored ones in place of references. Raises InvalidRequestError.

        An item counts for ``require_size`` as often as the input refers to it.
        """
        references = {
            item["id"]: response_of(item["id"])
            for item in items
            if item["type"] == "item_reference"
        }
        if not references:
            return items
        ids = list(dict.fromkeys(each for each in references.values() if each is not None))
        if len(ids) > MAX_REFERENCED:
            text = f"input refers to items of {len(ids)} responses; allowed: {MAX_REFERENCED}"
            raise InvalidRequestError(text, param="input")

        def read(session: Session) -> dict[str, Item]:
            found: dict[str, Item] = {}
            for each in ids:
                key = ResponseKey(tenant, app, each)
                row = repository.find(session, key)
                if row is not None:
                    require_size(row.size_bytes)
                    found |= {item["id"]: item for item in [*row.items, *row.response["output"]]}
            return found

        found = await read_in(self._sessions, read)
        for number, item in enumerate(items):
            if item["type"] == "item_reference" and item["id"] not in found:
                raise InvalidRequestError(
                    f"input[{number}].id: there is no such stored item",
                    param=f"input[{number}].id",
                    code="item_not_found",
                )
        again = Counter(item["id"] for item in items if item["type"] == "item_reference")
        again.subtract(found.keys() & again.keys())
        require_size(sum(n * len(orjson.dumps(found[name])) for name, n in again.items() if n))
        return [found[each["id"]] if each["type"] == "item_reference" else each for each in items]

    async def continued_by(self, tenant: str, app: str, items: Sequence[Item]) -> Continued:
        """Return the run of the stored response whose output the items repeat last, if any."""
        for item in reversed(items):
            reference = item.get("id")
            found = response_of(reference) if isinstance(reference, str) else None
            if found is not None and item.get("role", "assistant") == "assistant":
                try:
                    row = await self.find(ResponseKey(tenant, app, found))
                except NotFoundError:
                    break
                return Continued((), row.run_id, row.call_id, row.user_id)
        return Continued()

    async def insert(self, row: StoredResponse) -> bool:
        """Store a response; return false if its user was erased or its app deleted.

        One that has not ended is claimed by this process.
        """
        row.lease_until = utc_now() + LEASE if unfinished(row) else None
        row.size_bytes = size_of(row.items, row.response)
        try:
            return await write_in(self._sessions, partial(self._insert, row=row))
        except IntegrityError:
            return False

    async def extend(self, row: StoredResponse) -> bool:
        """Add the items of a response that is not stored to its conversation."""
        await write_in(self._sessions, partial(self._extend, row=row))
        return False

    async def end(self, row: StoredResponse) -> bool:
        """Store the end of a response in the background; return false if it was deleted."""
        key = ResponseKey(row.tenant_id, row.app_id, row.id)
        size_bytes = size_of(row.items, row.response)
        values = {
            "response": row.response,
            "status": row.status,
            "run_id": row.run_id,
            "size_bytes": size_bytes,
        }

        def write(session: Session) -> bool:
            ended = repository.end(session, key, values)
            if ended:
                self._bounds.add(session, key.tenant, key.app, 0, size_bytes)
                self._append(session, row)
            return ended

        return await write_in(self._sessions, write)

    async def renew(self, keys: Iterable[ResponseKey]) -> set[ResponseKey]:
        """Renew the leases of responses that run here; return those that have ended or were deleted.

        Raises SQLAlchemyError.
        """
        leases = [repository.lease(key) for key in keys]

        def write() -> set[ResponseKey]:
            with self._sessions.begin() as session:
                lost = RESPONSES.renew_all(session, leases, utc_now(), LEASE)
                return {ResponseKey(*lease.key) for lease in lost}

        return await to_its_end(write)

    async def is_stopped(self, key: ResponseKey) -> bool:
        """Return whether the process that ran a response in the background ended before it."""
        return await read_in(
            self._sessions, lambda session: repository.is_stopped(session, key, utc_now())
        )

    async def remove(self, key: ResponseKey) -> None:
        """Delete a response. Raises NotFoundError."""
        if not await write_in(self._sessions, partial(repository.remove, key=key)):
            raise _unknown(key.id)

    def _insert(self, session: Session, row: StoredResponse) -> bool:
        if erased_since(session, self._hasher, row.tenant_id, row.user_id, row.created_at):
            return False
        self._append(session, row)
        session.add(row)
        session.flush()
        self._bounds.add(session, row.tenant_id, row.app_id, 1, row.size_bytes)
        return True

    def _extend(self, session: Session, row: StoredResponse) -> None:
        if not erased_since(session, self._hasher, row.tenant_id, row.user_id, row.created_at):
            self._append(session, row)

    def _append(self, session: Session, row: StoredResponse) -> None:
        """Add the items of a response that has ended to its conversation."""
        if row.conversation_id is not None and row.status in ANSWERED:
            key = ResponseKey(row.tenant_id, row.app_id, row.conversation_id)
            items = [*row.items, *row.response["output"]]
            self.conversations.append(session, key, items, row.user_id)


def size_of(items: Sequence[Item], response: dict[str, Any]) -> int:
    """Return the bytes of a response and its input."""
    return len(orjson.dumps(items)) + len(orjson.dumps(response))


def unfinished(row: StoredResponse) -> bool:
    """Return whether a response is in the background, or was when its process ended."""
    return row.status in UNFINISHED


def _unknown(response_id: str) -> NotFoundError:
    return NotFoundError("there is no such response", param="response_id", code="not_found")


def _not_continued(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"previous_response_id: the response {problem}", param="previous_response_id"
    )
