"""Read one request for a response: what it continues, its items, and the chat call that answers it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from fairserve.engine.backoff import Backoff
from fairserve.interactions.tracking.identity import core_run_id
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import (
    BodyTooLargeError,
    ContextLengthError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.responses import StoredResponse
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.completions.endpoint import CheckSize, ReadRequest
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.serving.responses.items import Item, read_items, with_ids
from fairserve.platform.serving.responses.repository import ResponseKey
from fairserve.platform.serving.responses.schemas import ResponseBody
from fairserve.platform.serving.responses.store import Continued, ResponseStore
from fairserve.platform.serving.responses.translate import ResponsesChatFields, chat_fields
from fairserve.platform.serving.responses.writer import ResponseWriter
from fairserve.platform.tenancy.auth import Principal

logger = logging.getLogger(__name__)

PATH = "/v1/responses"
BACKOFF = Backoff(0.2, 10.0)
"""Pauses between attempts to store the end of a response in the background."""


class ResponsesEndpoint:
    """The endpoint for one request, whose body is read."""

    path = PATH

    def __init__(
        self, body: ResponseBody, store: ResponseStore, reservation: BodyReservation | None
    ) -> None:
        self._body = body
        self._store = store
        self._reservation = reservation
        self._stored = body.store is not False and store.options.response_store
        self.items: list[Item] = []
        """Items of the request's own input."""
        self._created_at = utc_now()
        self._conversation_user: str | None = None
        self.ending = False
        """True from when the end of a response in the background is stored."""
        self.writer: ResponseWriter | None = None
        """Writer of the answer, once the call is checked."""

    async def read(self, raw: bytes, principal: Principal, check_size: CheckSize) -> ReadRequest:
        """Return the chat call. Raises a FairServeError that names the field that is wrong."""
        tenant, app = principal.tenant_id or "", principal.app_id or ""
        added_bytes = 0

        def require_size(size_bytes: int) -> None:
            nonlocal added_bytes
            added_bytes += size_bytes
            self._require_size(len(raw) + added_bytes, check_size)

        own = await off_loop(len(raw), read_items, self._body.input)
        own = await self._store.resolved(tenant, app, own, require_size)
        continued = await self._continued(ResponseKey(tenant, app, ""), own, require_size)
        self.items = own
        size_bytes = len(raw) + added_bytes
        chat = await off_loop(size_bytes, chat_fields, self._body, continued.items, own)
        request = await off_loop(size_bytes, chat.read)

        run = None if continued.run_id is None else core_run_id(app, continued.run_id)

        def adapt(call: CallRequest) -> CallRequest:
            return replace(
                call,
                prompt_field="input",
                max_output_field="max_output_tokens",
                conversation=self._body.conversation_id,
                continued_run=run,
                continued_call=continued.call_id,
                continued_user=continued.user,
                continued_bytes=added_bytes,
            )

        return ReadRequest(request, lambda checked: self._new_writer(checked, chat), adapt)

    async def _continued(self, app: ResponseKey, own: list[Item], require_size: Any) -> Continued:
        previous, conversation = self._body.previous_response_id, self._body.conversation_id
        if conversation is not None:
            key = app._replace(id=conversation)
            state = await self._store.conversations.state(key, require_size)
            self._conversation_user = state.user
            return Continued(state.items, user=state.user)
        if previous is None:
            return await self._store.continued_by(app.tenant, app.app, own)
        try:
            return await self._store.chain(app._replace(id=previous), require_size)
        except NotFoundError as error:
            raise InvalidRequestError(
                "previous_response_id: there is no such response",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from error

    def _require_size(self, size_bytes: int, check_size: CheckSize) -> None:
        """Raise a FairServeError if what the request continues is too large, or memory is short."""
        try:
            check_size(size_bytes, self._body.model)
        except BodyTooLargeError as error:
            raise ContextLengthError(
                f"input: with all that it continues it has {size_bytes} bytes, more than the"
                f" context of {self._body.model!r} holds",
                param="input",
            ) from error
        if self._reservation is not None:
            self._reservation.grow(size_bytes)

    # --- the answer -------------------------------------------------------------------------------

    def _new_writer(self, checked: CheckedCall, chat: ResponsesChatFields) -> ResponseWriter:
        if self._conversation_user not in (None, checked.call.user):
            raise NotFoundError(
                "conversation: there is no such conversation for this user", param="conversation"
            )
        self.items = with_ids(self.items, checked.record_id)
        kept = self._stored or self._body.conversation_id is not None
        self.writer = ResponseWriter(
            checked, self._body, chat, self._store_end if kept else None, stored=self._stored
        )
        return self.writer

    def row(self, checked: CheckedCall, response: dict[str, Any]) -> StoredResponse:
        """Return the row of a response."""
        core = checked.call
        return StoredResponse(
            tenant_id=core.tenant,
            app_id=core.app,
            id=response["id"],
            user_id=core.user,
            run_id=checked.run_id,
            call_id=checked.call_id,
            previous_id=self._body.previous_response_id,
            conversation_id=self._body.conversation_id,
            status=response["status"],
            created_at=self._created_at,
            items=self.items,
            response=response,
        )

    async def _store_end(self, checked: CheckedCall, response: dict[str, Any]) -> bool:
        row = self.row(checked, response)
        if self._body.background:
            self.ending = True
            return await self._end_in_background(row)
        try:
            if self._stored:
                return await self._store.insert(row)
            return await self._store.extend(row)
        except (UnavailableError, InvalidRequestError) as error:
            logger.warning("a response is not stored: %s", error.message)
            return False

    async def _end_in_background(self, row: StoredResponse) -> bool:
        """Store the end of a response, for which the answer is complete and paid for.

        Nobody else has the answer: it waits for the database, and outlives a conversation without space.
        """
        failures = 0
        while True:
            try:
                return await self._store.end(row)
            except UnavailableError:
                failures += 1
                await asyncio.sleep(BACKOFF.pause_s(failures))
            except InvalidRequestError as error:
                logger.warning("a response does not extend its conversation: %s", error.message)
                row.conversation_id = None
