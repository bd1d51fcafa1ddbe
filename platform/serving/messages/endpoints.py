"""``/v1/messages`` and ``/v1/messages/count_tokens``, Anthropic's messages, for app keys."""

from __future__ import annotations

import re

from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from fairserve.engine.wire.request_fields import shown
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.call_router import CallRouter, IncomingCall
from fairserve.platform.serving.completions.endpoints import answer
from fairserve.platform.serving.messages.endpoint import (
    COUNT_PATH,
    MESSAGES,
    MESSAGES_PATH,
    TokenCounts,
)
from fairserve.platform.serving.messages.errors import VERSION_HEADER
from fairserve.platform.serving.messages.schemas import CountBody, MessageBody

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")

router = CallRouter(tags=["messages"])


@router.call(MESSAGES_PATH, MessageBody)
async def create_message(call: IncomingCall) -> ASGIApp:
    """Anthropic's messages."""
    _check_version(call)
    return await answer(MESSAGES, call)


@router.call(COUNT_PATH, CountBody, response_model=dict[str, int])
async def count_tokens(call: IncomingCall) -> ASGIApp:
    """The tokens of a message's prompt, by the tokenizer of its model. No call is made."""
    _check_version(call)
    counts: TokenCounts = call.services.token_counts
    return JSONResponse({"input_tokens": await counts.count(call.raw, call.principal)})


def _check_version(call: IncomingCall) -> None:
    """Raise InvalidRequestError unless the version of the API is a date, or missing.

    The format is the same for all: that of 2023-06-01, whose fields later versions keep.
    """
    version = call.headers.get(VERSION_HEADER)
    if version is not None and _VERSION.fullmatch(version) is None:
        raise InvalidRequestError(
            f"{VERSION_HEADER} is {shown(version)}; must be a date, such as 2023-06-01",
            param=VERSION_HEADER,
        )
