"""``/v1/messages`` and ``/v1/messages/count_tokens``, Anthropic's messages, for app keys."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request, Response

from fairserve.engine.wire.request_fields import shown
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.completions.endpoints import answer
from fairserve.platform.serving.described_body import described_body
from fairserve.platform.serving.messages.endpoint import (
    COUNT_PATH,
    MESSAGES,
    MESSAGES_PATH,
    TokenCounts,
)
from fairserve.platform.serving.messages.errors import VERSION_HEADER
from fairserve.platform.serving.messages.schemas import CountBody, MessageBody
from fairserve.platform.serving.principals import AppPrincipal

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")

router = APIRouter(tags=["messages"])


@router.post(MESSAGES_PATH, response_model=None, openapi_extra=described_body(MessageBody))
async def create_message(request: Request, principal: AppPrincipal) -> Response:
    """Anthropic's messages."""
    _check_version(request)
    return await answer(MESSAGES, request, principal)


@router.post(COUNT_PATH, openapi_extra=described_body(CountBody))
async def count_tokens(request: Request, principal: AppPrincipal) -> dict[str, int]:
    """The tokens of a message's prompt, by the tokenizer of its model. No call is made."""
    _check_version(request)
    counts: TokenCounts = request.app.state.token_counts
    return {"input_tokens": await counts.count(await request.body(), principal)}


def _check_version(request: Request) -> None:
    """Raise InvalidRequestError unless the version of the API is a date, or missing.

    The format is the same for all: that of 2023-06-01, whose fields later versions keep.
    """
    version = request.headers.get(VERSION_HEADER)
    if version is not None and _VERSION.fullmatch(version) is None:
        raise InvalidRequestError(
            f"{VERSION_HEADER} is {shown(version)}; must be a date, such as 2023-06-01",
            param=VERSION_HEADER,
        )
