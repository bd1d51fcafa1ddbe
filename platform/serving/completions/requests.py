"""A completion request as its client sent it, and its translations for decision and worker.

Parses and validates OpenAI's bodies. The decision service gets what it needs of them as a
:class:`~fairserve.platform.serving.decision.request.CallRequest`; the granted worker gets the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from fairserve.engine.wire.base import WorkerRejectedError
from fairserve.engine.wire.request_fields import (
    FieldDemand,
    RequestFieldError,
    demands,
    listed_fields,
)
from fairserve.engine.wire.tasks import CompletionPath
from fairserve.engine.wire.worker_json import MAX_DEPTH, is_too_deep
from fairserve.interactions.tracking.identity import CallIdentity
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.fleet.prompts.reader import Prompt
from fairserve.platform.serving.completions.endpoint import CheckSize
from fairserve.platform.serving.completions.merge import Merger, WholeCompletion
from fairserve.platform.serving.completions.output_schema import without_id
from fairserve.platform.serving.completions.schemas import (
    ChatBody,
    CompletionBody,
    TextBody,
    invalid,
)
from fairserve.platform.serving.completions.tools import check_tool_types
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.end_user import user_in_body
from fairserve.platform.serving.decision.request import (
    AnyReader,
    CallRequest,
    DeclaredWork,
    RequestedTier,
)
from fairserve.platform.tenancy.auth import Principal

CHAT: CompletionPath = "/v1/chat/completions"
TEXT: CompletionPath = "/v1/completions"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A completion request whose fields are valid."""

    path: CompletionPath
    plain: dict[str, Any]
    """The fields as they were sent, without those that are null."""
    body: CompletionBody
    demands: list[FieldDemand]
    """The fields that not every kind of worker honours."""

    def call_request(
        self,
        principal: Principal,
        *,
        endpoint: str = "",
        headers: Mapping[str, str] | None = None,
        raw: bytes = b"",
        identity: CallIdentity | None = None,
        declared: DeclaredWork | None = None,
        background: bool = False,
    ) -> CallRequest:
        """Return the request for the decision service.

        ``endpoint`` is the client's, if it is not that of the worker. With an ``identity`` nothing
        is inferred from the messages.
        """
        body = self.body
        chat = isinstance(body, ChatBody)
        return CallRequest(
            principal=principal,
            endpoint=endpoint or self.path,
            model=body.model,
            prompt_field="messages" if chat else "prompt",
            count_tokens=self._count_tokens,
            user=user_in_body(body.user, self.plain),
            has_media=isinstance(body, ChatBody) and body.has_media,
            samples=body.n or 1,
            max_output_tokens=body.asked_tokens,
            max_output_field=body.asked_field,
            cache_salt=body.cache_salt,
            demands=self.demands,
            headers=headers or {},
            metadata=body.metadata,
            prompt_cache_key=self.plain.get("prompt_cache_key"),
            identity=identity,
            messages=self.plain["messages"] if chat and identity is None else None,
            raw=raw,
            declared=declared,
            background=background,
            service_tier=body.service_tier,
            stream=bool(body.stream),
        )

    @property
    def stream(self) -> bool:
        """True if the client gets the output as it arrives."""
        return bool(self.body.stream)

    @property
    def include_usage(self) -> bool:
        """True if the client gets the usage at the end of a stream."""
        return self.body.include_usage

    @property
    def continuous_usage(self) -> bool:
        """True if the client gets the usage with every chunk."""
        return self.body.continuous_usage

    @property
    def service_tier(self) -> RequestedTier | None:
        """The tier that the client requests."""
        return self.body.service_tier

    def worker_body(self, checked: CheckedCall) -> dict[str, Any]:
        """Return what the worker gets: the request with the model's own name."""
        body = self.body
        fields = {**self.plain, "model": checked.model.worker_name}
        if isinstance(body, TextBody):
            fields["prompt"] = body.only_prompt
        if body.asked_tokens is None:
            fields["max_tokens"] = checked.call.max_output_tokens
        return fields

    def merger(self) -> Merger:
        """Return an empty answer."""
        return Merger() if self.stream else WholeCompletion()

    def rejected(
        self, error: WorkerRejectedError, worker_id: str, model: str
    ) -> WorkerRejectedError:
        """Return the worker's rejection, unchanged."""
        return error

    async def _count_tokens(self, reader: AnyReader, tenant: str, max_tokens: int | None) -> Prompt:
        if isinstance(self.body, ChatBody):
            return await reader.chat(
                self.plain["messages"],
                self.plain.get("tools"),
                tenant=tenant,
                max_tokens=max_tokens,
                options=self.body.prompt_options,
            )
        assert isinstance(self.body, TextBody)
        return await reader.text(
            self.body.only_prompt,
            tenant=tenant,
            max_tokens=max_tokens,
            options=self.body.prompt_options,
        )


async def read_request(
    path: CompletionPath, raw: bytes, check_size: CheckSize
) -> CompletionRequest:
    """Parse a body and check its fields, a large one in a thread. Raises a FairServeError."""
    return await off_loop(len(raw), _parse, path, raw, check_size)


def read_fields(path: CompletionPath, plain: dict[str, Any]) -> CompletionRequest:
    """Check the fields of a request. Raises InvalidRequestError naming the first that is wrong."""
    kind = ChatBody if path == CHAT else TextBody
    plain = listed_fields(plain)
    check_tool_types(plain.get("tools"))
    try:
        body = kind.model_validate(plain)
        found = demands(path, plain)
    except ValidationError as error:
        raise invalid(error, plain) from error
    except RequestFieldError as error:
        raise InvalidRequestError(str(error), param=error.field, code=error.code) from error
    _leave_out_ids(plain)
    return CompletionRequest(path, plain, body, found)


def _leave_out_ids(plain: dict[str, Any]) -> None:
    """Leave the schemas' own ids out of valid fields, whose objects around schemas are copies."""
    holders = [(tool["function"], "parameters") for tool in plain.get("tools") or ()]
    format_ = plain.get("response_format") or {}
    holders += [
        (format_.get("json_schema") or {}, "schema"),
        (plain.get("structured_outputs") or {}, "json"),
    ]
    for holder, name in holders:
        if name in holder:
            holder[name] = without_id(holder[name])


def _parse(path: CompletionPath, raw: bytes, check_size: CheckSize) -> CompletionRequest:
    return read_fields(path, read_object(raw, check_size))


def read_object(raw: bytes, check_size: CheckSize | None = None) -> dict[str, Any]:
    """Return the JSON object of a body, if its model allows its size. Raises a FairServeError.

    An object that is nested too deeply could be read, and not be written again.
    """
    try:
        plain = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body is not JSON: {error}", code="malformed_json"
        ) from error
    if not isinstance(plain, dict):
        raise InvalidRequestError("the body must be a JSON object", code="malformed_json")
    if check_size is not None and isinstance(model := plain.get("model"), str):
        check_size(len(raw), model)  # before the fields, whose check takes longer than parsing
    if is_too_deep(plain, raw):
        raise InvalidRequestError(
            f"the body is nested too deeply; allowed: {MAX_DEPTH} levels", code="malformed_json"
        )
    return plain
