"""Anthropic's messages as an endpoint of the relay, and the counting of their tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from fairserve.engine.wire.request_fields import FieldDemand
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import InvalidRequestError, RateLimitedError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.serving.completions.endpoint import CheckSize, ReadRequest
from fairserve.platform.serving.completions.requests import (
    CHAT,
    CompletionRequest,
    read_fields,
    read_object,
)
from fairserve.platform.serving.completions.tools import check_tool_types
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.messages.errors import PATHS
from fairserve.platform.serving.messages.schemas import CountBody, MessageBody, wrong
from fairserve.platform.serving.messages.translate import chat_fields
from fairserve.platform.serving.messages.writer import MessageWriter
from fairserve.platform.tenancy.auth import Principal

Body = TypeVar("Body", bound=CountBody)
MESSAGES_PATH, COUNT_PATH = PATHS
MAX_COUNTS = 8
"""Prompts that are counted at a time for one app."""
MAX_COUNTS_IN_ALL = 64
COUNT_SHARE = 1 / 4
"""Share of these that one tenant may have of what the others leave."""
COUNT_RETRY_S = "1"


class MessagesEndpoint:
    """Anthropic's messages, carried as chat calls."""

    path = MESSAGES_PATH

    async def read(self, raw: bytes, principal: Principal, check_size: CheckSize) -> ReadRequest:
        """Parse and check a body."""
        body, request = await off_loop(len(raw), _read, MessageBody, raw, check_size)
        show = body.thinking is None or body.thinking.display != "omitted"
        writer = partial(MessageWriter, show_thinking=show)
        if body.service_tier == "auto":
            return ReadRequest(request, writer, partial(replace, priority_if_granted=True))
        return ReadRequest(request, writer)


MESSAGES = MessagesEndpoint()


class TokenCounts:
    """Counts the tokens of messages. No call is made, so no quota limits it.

    Instead, an app and its tenant have few counts in progress, and prompts are tokenised in turns of
    tenants, as those of calls are. O(1) per request besides the tokenising.
    """

    def __init__(self, decisions: DecisionService) -> None:
        self._decisions = decisions
        self._running: Counter[str] = Counter()
        """Counts in progress by app; apps without one have no entry."""
        self._counts = SharedLimit(MAX_COUNTS_IN_ALL, COUNT_SHARE)

    async def count(self, raw: bytes, principal: Principal) -> int:
        """Return the tokens of a request's prompt. Raises a FairServeError."""
        app = principal.app_id or ""
        if self._running[app] >= MAX_COUNTS:
            raise _too_many_counts(f"{MAX_COUNTS} prompts of this app")
        full = self._counts.take(principal.sharer)
        if full is not None:
            number = self._counts.of(principal.sharer)
            raise _too_many_counts(
                f"{number} prompts of this tenant" if full == "owner" else "too many prompts"
            )
        self._running[app] += 1
        try:
            check_size = self._decisions.check_size
            _, request = await off_loop(len(raw), _read, CountBody, raw, check_size)
            counted = await self._decisions.count(request.call_request(principal))
        finally:
            self._counts.release(principal.sharer)
            self._running[app] -= 1
            if not self._running[app]:
                del self._running[app]
        return len(counted.token_ids)


def _too_many_counts(which: str) -> RateLimitedError:
    return RateLimitedError(
        f"{which} are being counted, which is the limit; retry in {COUNT_RETRY_S} s",
        headers={"Retry-After": COUNT_RETRY_S},
    )


def _read(kind: type[Body], raw: bytes, check_size: CheckSize) -> tuple[Body, CompletionRequest]:
    """Return a body and its chat call. Raises a FairServeError with the client's names of fields."""
    plain = read_object(raw, check_size)
    check_tool_types(plain.get("tools"), "custom")
    try:
        body = kind.model_validate(plain)
    except ValidationError as error:
        raise wrong(error, plain) from error
    fields = chat_fields(body)
    try:
        request = read_fields(CHAT, fields.plain)
    except InvalidRequestError as error:
        if error.param is not None:
            original = fields.original(error.param)
            error.message = original + error.message.removeprefix(error.param)
            error.param = original
        raise
    request.demands[:] = [
        FieldDemand(fields.original(demand.field), demand.kinds) for demand in request.demands
    ]
    return body, request
