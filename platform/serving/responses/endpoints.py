"""``/v1/responses``, for app keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import Query, Request, Response
from pydantic import Field
from starlette.types import ASGIApp

from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.db.schemas import ObjectId, Strict
from fairserve.platform.serving.call_router import CallRouter, IncomingCall
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.serving.responses.schemas import ResponseBody
from fairserve.platform.serving.responses.service import Responses

router = CallRouter(prefix="/v1/responses", tags=["responses"])


class ItemsQuery(Strict):
    """A page of items, the latest first by default."""

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: Annotated[str, Field(max_length=128)] | None = None


class ReadQuery(Strict):
    """Only the response as it is now can be read: its events are not kept."""

    stream: Literal["false", "False", "0"] | None = None


@router.call("", ResponseBody)
async def create_response(call: IncomingCall) -> ASGIApp:
    """OpenAI's responses: a model's answer, stored so that it can be continued."""
    service: Responses = call.services.responses
    return await service.create(call.raw, call.headers, call.principal, call.reservation)


@router.get("/{response_id}", response_model=None)
async def read_response(
    response_id: ObjectId,
    request: Request,
    principal: AppPrincipal,
    query: Annotated[ReadQuery, Query()],
) -> Response:
    """A stored response as it is now."""
    return await written(await _service(request).get(principal, response_id))


@router.delete("/{response_id}")
async def delete_response(
    response_id: ObjectId, request: Request, principal: AppPrincipal
) -> dict[str, Any]:
    """Delete a stored response; one in the background is cancelled."""
    return await _service(request).delete(principal, response_id)


@router.post("/{response_id}/cancel", response_model=None)
async def cancel_response(
    response_id: ObjectId, request: Request, principal: AppPrincipal
) -> Response:
    """Cancel a response in the background."""
    return await written(await _service(request).cancel(principal, response_id))


@router.get("/{response_id}/input_items", response_model=None)
async def list_input_items(
    response_id: ObjectId,
    request: Request,
    principal: AppPrincipal,
    query: Annotated[ItemsQuery, Query()],
) -> Response:
    """Items of a response's own input, without those that it continues."""
    found = await _service(request).items(
        principal, response_id, limit=query.limit, order=query.order, after=query.after
    )
    return await written(found)


async def written(answer: dict[str, Any]) -> Response:
    """Return the answer as JSON, encoded in a thread: it may have megabytes."""
    size = len(answer.get("output") or answer.get("data") or ())
    body = await off_loop(size * 64 * 1024, orjson.dumps, answer)
    return Response(body, media_type="application/json")


def _service(request: Request) -> Responses:
    service: Responses = request.app.state.responses
    return service
