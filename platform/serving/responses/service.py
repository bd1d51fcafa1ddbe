"""Responses of apps: create, read, cancel and delete them, in the foreground and in the background.

A response in the background belongs to the server: it is stored as queued and claimed
(:mod:`fairserve.platform.serving.claims`), its client may leave, and its end is stored. One whose server
ended before it has failed, which is stored when it is next read; it is not run again, because its call
was charged and its tools may have been called. While control accepts nothing new, one waits.

Weakness: one that another server runs is shown as queued until its end, and is cancelled without the
output that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp

from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import (
    ConflictError,
    FairServeError,
    InvalidRequestError,
    RateLimitedError,
    UnavailableError,
)
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db.responses import StoredResponse
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.claims import keep_claims
from fairserve.platform.serving.completions.answer import AnswerBuffer
from fairserve.platform.serving.completions.producer import JSON, Producer
from fairserve.platform.serving.completions.requests import read_object
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.responses.endpoint import ResponsesEndpoint
from fairserve.platform.serving.responses.repository import UNFINISHED, ResponseKey
from fairserve.platform.serving.responses.schemas import ResponseBody, read_body
from fairserve.platform.serving.responses.store import ResponseStore, unfinished
from fairserve.platform.serving.responses.writer import ResponseWriter, failure
from fairserve.platform.tenancy.auth import Principal

RETRY_S = "5"


@dataclass(frozen=True, slots=True)
class BackgroundOptions:
    """Bounds of responses in the background."""

    max_in_all: int = 1_000
    tenant_share: float = 1 / 4
    max_per_app: int = 100
    max_wait_s: float = 360.0
    """Seconds for which one waits while control accepts nothing new."""


@dataclass(slots=True)
class _InBackground:
    key: ResponseKey
    endpoint: ResponsesEndpoint
    writer: ResponseWriter
    buffer: AnswerBuffer
    task: asyncio.Task[None] | None = None


class Responses:
    """Belongs to one event loop."""

    def __init__(
        self,
        completions: Completions,
        decisions: DecisionService,
        store: ResponseStore,
        options: BackgroundOptions = BackgroundOptions(),
    ) -> None:
        self._completions = completions
        self._decisions = decisions
        self._store = store
        self._options = options
        self._running: dict[ResponseKey, _InBackground] = {}
        self._places = SharedLimit(options.max_in_all, options.tenant_share)
        self._running_of: Counter[str] = Counter()
        """Responses in the background by app; apps without one have no entry."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Renew the claims on what runs in the background."""
        work = keep_claims("responses", self._renew)
        self._task = asyncio.create_task(work, name="responses")

    @property
    def running(self) -> int:
        """Number of responses that run in the background."""
        return len(self._running)

    async def create(
        self,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
        reservation: BodyReservation | None = None,
    ) -> ASGIApp:
        """Answer a request for a response. Raises a FairServeError if it is wrong."""
        body = await off_loop(len(raw), self._parse, raw)
        if not self._store.options.response_store and (body.store or body.background):
            name = "background" if body.background else "store"
            raise InvalidRequestError(
                f"{name}: this server stores no responses; leave it out",
                param=name,
                code="unsupported_parameter",
            )
        endpoint = ResponsesEndpoint(body, self._store, reservation)
        if body.background:
            return await self._begin(body, endpoint, raw, headers, principal, reservation)
        return await self._completions.answer(endpoint, raw, headers, principal, reservation)

    async def get(self, principal: Principal, response_id: str) -> dict[str, Any]:
        """Return a response. Raises NotFoundError."""
        return await self._now(await self._store.find(_key(principal, response_id)))

    async def items(
        self,
        principal: Principal,
        response_id: str,
        *,
        limit: int,
        order: Literal["asc", "desc"],
        after: str | None,
    ) -> dict[str, Any]:
        """Return a page of the items of a response's input. Raises NotFoundError."""
        row = await self._store.find(_key(principal, response_id))
        return page(row.items, limit=limit, order=order, after=after)

    async def delete(self, principal: Principal, response_id: str) -> dict[str, Any]:
        """Delete a response, and cancel it if it runs. Raises NotFoundError."""
        key = _key(principal, response_id)
        await self._stop(key)
        await self._store.remove(key)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, principal: Principal, response_id: str) -> dict[str, Any]:
        """Cancel a response in the background, and return it. Raises a FairServeError."""
        key = _key(principal, response_id)
        row = await self._store.find(key)
        if not row.response["background"]:
            raise InvalidRequestError(
                "response_id: only responses with background true can be cancelled",
                param="response_id",
            )
        running = await self._stop(key)
        if running is not None:
            cancelled = running.writer.response("cancelled")
            if await self._store.end(running.endpoint.row(running.writer.checked, cancelled)):
                return cancelled
            row = await self._store.find(key)
        response = await self._now(row)
        if response["status"] in UNFINISHED:
            response = await self._end(row, {"status": "cancelled"})
        if response["status"] != "cancelled":
            raise InvalidRequestError(
                f"response_id: the response has ended ({response['status']})", param="response_id"
            )
        return response

    async def close(self) -> None:
        """Cancel what still runs in the background."""
        tasks = [each.task for each in self._running.values() if each.task is not None]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- background -------------------------------------------------------------------------------

    async def _begin(
        self,
        body: ResponseBody,
        endpoint: ResponsesEndpoint,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
        reservation: BodyReservation | None,
    ) -> ASGIApp:
        """Start a response in the background, and return it as it is now, or its events."""
        if "idempotency-key" in headers:
            raise InvalidRequestError(
                "Idempotency-Key is not allowed together with background; the id of the response"
                " finds it again",
                param="Idempotency-Key",
            )
        key = _key(principal, "")
        self._take_place(key)
        try:
            producer = await self._completions.producer(
                endpoint, raw, headers, principal, max_wait_s=self._options.max_wait_s
            )
            writer = endpoint.writer
            assert writer is not None, "the call is checked"
            queued = writer.response("queued")
            if not await self._store.insert(endpoint.row(writer.checked, queued)):
                raise ConflictError("the app or the user of the response was deleted")
        except BaseException:
            self._release_place(key)
            raise
        buffer = AnswerBuffer()
        buffer.forget(awaits_reader=bool(body.stream))  # its end is stored
        running = _InBackground(_key(principal, queued["id"]), endpoint, writer, buffer)
        self._running[running.key] = running
        running.task = asyncio.create_task(self._run(running, producer), name="response")
        running.task.add_done_callback(lambda _: self._ended(running))
        if reservation is not None:
            reservation.held_by_call = True
            running.task.add_done_callback(lambda _: reservation.release())
        if body.stream:
            return self._completions.following(running.buffer, replayed=False)
        more = self._decisions.headers(writer.checked)
        return Response(orjson.dumps(queued), headers=more, media_type=JSON)

    async def _run(self, running: _InBackground, producer: Producer) -> None:
        buffer, writer = running.buffer, running.writer
        try:
            await producer.produce(buffer)
            if not producer.succeeded:
                error = writer.error or FairServeError("internal error")
                await self._fail(running, error)
        except asyncio.CancelledError:
            if not buffer.status:
                error = ConflictError("the response was cancelled", code="response_cancelled")
                buffer.start(error.status, {"content-type": JSON})
                buffer.write(orjson.dumps(error.body()))
            raise
        finally:
            buffer.finish()

    def _ended(self, running: _InBackground) -> None:
        del self._running[running.key]
        self._release_place(running.key)

    async def _fail(self, running: _InBackground, error: FairServeError) -> None:
        """Store a failure; without a database the response is answered as failed all the same."""
        writer = running.writer
        failed = writer.failed(error)
        with contextlib.suppress(UnavailableError):
            await self._store.end(running.endpoint.row(writer.checked, failed))

    async def _stop(self, key: ResponseKey) -> _InBackground | None:
        """Cancel a response that runs, wait for its end and return it; None if it does not run."""
        running = self._running.get(key)
        if running is None or running.task is None:
            return None
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        return running

    async def _now(self, row: StoredResponse) -> dict[str, Any]:
        """Return a response as it is now; one whose process has ended fails."""
        key = ResponseKey(row.tenant_id, row.app_id, row.id)
        running = self._running.get(key)
        if not unfinished(row):
            return row.response
        if running is not None:
            return running.writer.response("in_progress" if running.writer.started else "queued")
        if await self._store.is_stopped(key):
            text = "the server stopped before the response ended; create it again"
            error = failure(UnavailableError(text))
            return await self._end(row, {"status": "failed", "error": error})
        return (await self._store.find(key)).response  # it may have ended since the row was read

    async def _end(self, row: StoredResponse, changes: dict[str, Any]) -> dict[str, Any]:
        """Store the end of a response that does not run here; return the end that came first."""
        row.response = row.response | changes
        row.status = row.response["status"]
        if await self._store.end(row):
            return row.response
        return (await self._store.find(ResponseKey(row.tenant_id, row.app_id, row.id))).response

    async def _renew(self) -> None:
        """Renew the claims; stop what was cancelled or deleted at another process."""
        for key in await self._store.renew(self._running) if self._running else ():
            running = self._running.get(key)
            if running is not None and not running.endpoint.ending:
                await self._stop(key)

    def _take_place(self, key: ResponseKey) -> None:
        """Take a place of the app and its tenant. Raises RateLimitedError or UnavailableError."""
        of_app = self._running_of[key.app]
        if of_app >= self._options.max_per_app:
            raise _too_many(f"the app has {of_app}")
        full = self._places.take(key.tenant)
        if full == "owner":
            raise _too_many(f"the tenant has {self._places.of(key.tenant)}")
        if full == "all":
            raise UnavailableError(
                "the server has no capacity for more responses in the background; retry later",
                code="too_many_background_responses",
                headers={"Retry-After": RETRY_S},
            )
        self._running_of[key.app] += 1

    def _release_place(self, key: ResponseKey) -> None:
        self._places.release(key.tenant)
        self._running_of[key.app] -= 1
        if not self._running_of[key.app]:
            del self._running_of[key.app]

    def _parse(self, raw: bytes) -> ResponseBody:
        return read_body(read_object(raw, self._decisions.check_size))


def _too_many(which: str) -> RateLimitedError:
    return RateLimitedError(
        f"{which} responses in the background, which is the limit at present; retry when one has ended",
        param="background",
        code="too_many_background_responses",
        headers={"Retry-After": RETRY_S},
    )


def page(
    items: list[dict[str, Any]], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> dict[str, Any]:
    """Return a page of items in OpenAI's shape. Raises InvalidRequestError for an unknown ``after``."""
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise InvalidRequestError("after: there is no such item", param="after")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(ordered) > limit,
    }


def _key(principal: Principal, response_id: str) -> ResponseKey:
    return ResponseKey(principal.tenant_id or "", principal.app_id or "", response_id)
