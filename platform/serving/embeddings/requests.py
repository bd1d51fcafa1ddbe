"""An embedding or rerank request as its client sent it, and its translations for decision and worker.

The call has the tokens of all its inputs and no token ids: its inputs are no prefix that a later call
could find in a worker's cache, so the router keeps no record of them. Every input must fit the model's
context, and all of them together ``MAX_CALL_TOKENS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fairserve.engine.wire.base import MalformedAnswerError, WorkerChunk, WorkerRejectedError
from fairserve.engine.wire.request_fields import (
    FieldDemand,
    RequestFieldError,
    demands,
    listed_fields,
)
from fairserve.engine.wire.tasks import EMBEDDINGS, TASK_OF_PATH, PoolingPath
from fairserve.interactions.call import NO_TOKENS
from fairserve.platform.base.errors import ContextLengthError, InvalidRequestError
from fairserve.platform.fleet.models import MAX_CALL_TOKENS
from fairserve.platform.fleet.prompts.reader import Prompt
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.schemas import invalid
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.end_user import user_in_body
from fairserve.platform.serving.decision.request import AnyReader, CallRequest, RequestedTier
from fairserve.platform.serving.embeddings.schemas import EmbeddingBody, RerankBody
from fairserve.platform.tenancy.auth import Principal


class PoolingAnswer(Merger):
    """One JSON object, whose list ``field`` must have ``entries`` entries."""

    def __init__(
        self,
        field: str,
        entries: int,
        documents: Sequence[str] = (),
        return_documents: bool | None = None,
    ) -> None:
        """``return_documents`` adds each document to its result, or removes it; None: neither."""
        super().__init__()
        self._field, self._entries = field, entries
        self._documents, self._return_documents = documents, return_documents
        self._data: dict[str, Any] = {}

    def add(self, part: WorkerChunk) -> None:
        """Take the object. Raises MalformedAnswerError if it has another number of entries."""
        chunk = part.data
        found = len(chunk[self._field])
        if found != min(self._entries, len(self._documents) or self._entries):
            raise MalformedAnswerError(f"it sent {found} {self._field}, not {self._entries}")
        self._data = chunk

    def answer(self, answer_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole answer, whose usage has no output, as at OpenAI."""
        usage = {name: count for name, count in usage.items() if name != "completion_tokens"}
        answer = {**self._data, "id": answer_id, "model": model, "usage": usage}
        if self._return_documents is not None:
            answer[self._field] = [self._with_document(each) for each in answer[self._field]]
        return answer

    def _with_document(self, result: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in result.items() if name != "document"}
        if not self._return_documents:
            return rest
        return {**rest, "document": {"text": self._documents[result["index"]]}}


_REQUIRED = frozenset({"model", "input", "query", "documents"})
"""Fields of every call: words of many messages that are about another field."""


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """An embedding or rerank request whose fields are valid."""

    path: PoolingPath
    plain: dict[str, Any]
    """The fields as they were sent, without those that are null."""
    body: EmbeddingBody | RerankBody
    demands: Sequence[FieldDemand]
    stream = False
    include_usage = False
    continuous_usage = False

    def call_request(
        self,
        principal: Principal,
        *,
        endpoint: str = "",
        headers: Mapping[str, str] | None = None,
        raw: bytes = b"",
        background: bool = False,
    ) -> CallRequest:
        """Return the request for the decision service."""
        body = self.body
        return CallRequest(
            principal=principal,
            endpoint=endpoint or self.path,
            model=body.model,
            prompt_field=self._field,
            count_tokens=self._count_tokens,
            task=TASK_OF_PATH[self.path],
            user=user_in_body(body.user, self.plain),
            cache_salt=body.cache_salt,
            demands=self.demands,
            headers=headers or {},
            metadata=body.metadata,
            raw=raw,
            background=background,
            service_tier=body.service_tier,
        )

    @property
    def service_tier(self) -> RequestedTier | None:
        """The tier that the client requests."""
        return self.body.service_tier

    def worker_body(self, checked: CheckedCall) -> dict[str, Any]:
        """Return what the worker gets: the request with the model's own name."""
        fields = {**self.plain, "model": checked.model.worker_name}
        if isinstance(self.body, RerankBody):
            fields["documents"] = self.body.texts
        return fields

    def merger(self) -> PoolingAnswer:
        """Return an empty answer."""
        body = self.body
        if isinstance(body, EmbeddingBody):
            one = isinstance(body.input, str) or isinstance(body.input[0], int)
            return PoolingAnswer("data", 1 if one else len(body.input))
        most = body.top_n or len(body.texts)
        return PoolingAnswer("results", most, body.texts, body.return_documents)

    def rejected(
        self, error: WorkerRejectedError, worker_id: str, model: str
    ) -> WorkerRejectedError:
        """Return the worker's rejection as a 400 that names the field and the worker."""
        message = str(error.error.get("message") or "it rejected the call")
        field = error.error.get("param")
        if error.status == 404:
            field = "model"
            message = f"{self.path} is not served for {model!r} ({message})"
        elif field not in self.plain:
            named = [name for name in self.plain if re.search(rf"\b{name}\b", message)]
            field = next((name for name in named if name not in _REQUIRED), None)
        text = f"worker {worker_id}: {message}"
        fields = {**error.error, "message": f"{field}: {text}" if field else text, "param": field}
        return WorkerRejectedError(413 if error.status == 413 else 400, fields)

    @property
    def _field(self) -> str:
        return "input" if self.path == EMBEDDINGS else "documents"

    async def _count_tokens(self, reader: AnyReader, tenant: str, max_tokens: int | None) -> Prompt:
        """Count all inputs. Raises ContextLengthError naming an input that does not fit.

        ``max_tokens`` is the context of the model, or None where counts are estimates.
        """
        body = self.body
        most = max_tokens if body.truncate_prompt_tokens is None else None
        if isinstance(body, EmbeddingBody):
            sizes, exact = await _sizes(reader, body.input, tenant, most)
            names = ["input"] if len(sizes) == 1 else [f"input[{n}]" for n in range(len(sizes))]
            repeated = 1
        else:
            sizes, exact = await _sizes(reader, [body.query, *body.texts], tenant, most)
            names = ["query", *(f"documents[{n}]" for n in range(len(sizes) - 1))]
            repeated = len(body.documents)  # a cross-encoder reads the query with each document
        if most is not None:
            for name, size in zip(names, sizes, strict=True):
                if size > most:
                    raise ContextLengthError(
                        f"{name} has at least {size} tokens; the context is {most}", param=name
                    )
        if body.truncate_prompt_tokens is not None and body.truncate_prompt_tokens > 0:
            sizes = [min(size, body.truncate_prompt_tokens) for size in sizes]
        total = sum(sizes) + (repeated - 1) * sizes[0]
        if total > MAX_CALL_TOKENS:
            raise ContextLengthError(
                f"{self._field}: the call has {total} tokens; allowed: {MAX_CALL_TOKENS}. Send fewer"
                " in each call",
                param=self._field,
            )
        return Prompt(NO_TOKENS, 0, exact=exact, counted_tokens=total)


def read_fields(path: PoolingPath, plain: dict[str, Any]) -> PoolingRequest:
    """Check the fields of a request. Raises InvalidRequestError naming the first that is wrong."""
    kind = EmbeddingBody if path == EMBEDDINGS else RerankBody
    plain = listed_fields(plain)
    try:
        return PoolingRequest(path, plain, kind.model_validate(plain), demands(path, plain))
    except ValidationError as error:
        raise invalid(error, plain) from error
    except RequestFieldError as error:
        raise InvalidRequestError(str(error), param=error.field, code=error.code) from error


async def _sizes(
    reader: AnyReader,
    inputs: str | Sequence[str] | Sequence[int] | Sequence[list[int]],
    tenant: str,
    most: int | None,
) -> tuple[list[int], bool]:
    """Return the tokens of each input, and whether the numbers are exact."""
    if isinstance(inputs, str):
        return await reader.sizes([inputs], tenant=tenant, max_tokens=most)
    texts = [each for each in inputs if isinstance(each, str)]
    if texts:
        return await reader.sizes(texts, tenant=tenant, max_tokens=most)
    ids = [each for each in inputs if isinstance(each, list)]
    return ([len(each) for each in ids] if ids else [len(inputs)]), True
