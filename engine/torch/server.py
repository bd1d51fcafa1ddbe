"""A worker over HTTP: vLLM's dialect of the OpenAI API in front of the embedded engine.

Routes: POST /v1/chat/completions, /v1/completions and /tokenize, GET /v1/models, /health, /metrics.
The first chunk of a stream (chat's role, an empty text for completions) is sent when the sample enters
the batch, so a client can distinguish waiting from running. A disconnecting client cancels its call.

Without ``max_tokens`` the limit is 512 tokens (chat) or 16 (completions, as in OpenAI's API), and
never more than the context allows: an unlimited output would hold its pages for as long as the
model generates.

HTTP status codes of a worker are only here and in :mod:`fairserve.engine.torch.http_answers`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from dataclasses import replace
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fairserve.engine.kv_events.publisher import KvPublisher
from fairserve.engine.torch import metrics_text
from fairserve.engine.torch.bad_words import BadWords
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.engine_thread import EngineStoppedError, EngineThread, QueueFullError
from fairserve.engine.torch.events import EngineEvent, Failed
from fairserve.engine.torch.http_answers import (
    DRAINING,
    INVALID_REQUEST,
    EventStream,
    JsonResponse,
    WholeAnswer,
    busy,
    error_answer,
    unavailable,
)
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.openai.request import GenerationRequest, Kind, parse
from fairserve.engine.torch.openai.response import EngineAnswerWriter
from fairserve.engine.torch.page_changes import PageChange, PageChanges
from fairserve.engine.torch.prompt import PromptEncoder
from fairserve.engine.torch.response_formats import ResponseFormats
from fairserve.engine.torch.running_call import EngineCall
from fairserve.engine.torch.schema_checks import ChecksFullError
from fairserve.engine.torch.scripted.answers import ScriptedAnswers
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.engine.torch.token_constraint import Grammar
from fairserve.engine.torch.token_texts import TokenTexts
from fairserve.engine.torch.tokenize_request import parse_tokenize
from fairserve.interactions.call import TokenIds
from fairserve.scheduling.base import LocalScheduler

_log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS: dict[Kind, int] = {"chat": 512, "completion": 16}
MAX_BODY_BYTES = 16 * 2**20
_LAST_WORDS_S = 2.0
"""Seconds for writing the responses of calls that are cut off at the end of a drain."""


class WorkerServer:
    """ASGI application of one worker. Created and used inside a running event loop."""

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: LocalScheduler,
        options: EngineOptions,
        max_queue: int,
        kv_events: KvPublisher[PageChange] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = loaded.name
        self._created = int(time.time())
        self._encoder = PromptEncoder(loaded.tokenizer, loaded.vocabulary)
        self._formats = ResponseFormats(loaded.tokenizer, loaded.vocabulary, loaded.eos_ids)
        self._script = (
            ScriptedAnswers(loaded.vocabulary, loaded.eos_ids, self._formats)
            if loaded.is_scripted
            else None
        )
        self._texts = TokenTexts(loaded.tokenizer)
        self._numbers = itertools.count(1)
        self._calls: dict[str, EngineCall] = {}
        """Live calls by the id of each of their sequences."""
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._kv_events = kv_events
        page_changes = PageChanges(kv_events.put) if kv_events is not None else None
        self.engine = EngineThread(
            loaded, scheduler, options, max_queue, self._on_events, page_changes
        )
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
            ]
        )

    async def drain(self, limit_s: float) -> None:
        """Reject new calls, return waiting ones, await running ones, cut the rest off at the limit."""
        self._draining = True
        for call in set(self._calls.values()):
            if not call.has_started:
                self.engine.cancel(call.sequence_ids)
                call.put(Failed(call.sequence_ids[0], DRAINING, handed_back=True))
        if not await self._wait_until_empty(limit_s):
            _log.warning("cutting off %d sequences at the end of the drain", len(self._calls))
            for sequence_id, call in list(self._calls.items()):
                call.put(Failed(sequence_id, "the worker is shutting down"))
            await self._wait_until_empty(_LAST_WORDS_S)

    async def close(self) -> None:
        """End the process that checks schemas."""
        await self._formats.close()

    async def _wait_until_empty(self, limit_s: float) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), limit_s)
        except TimeoutError:
            return False
        return True

    # Routes

    async def _chat(self, request: Request) -> Response:
        return await self._generate("chat", request)

    async def _completion(self, request: Request) -> Response:
        return await self._generate("completion", request)

    async def _models(self, request: Request) -> Response:
        entry = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "fairserve" if self._script is None else "fairserve-demo",
            "root": self._model,
            "parent": None,
            "max_model_len": self.engine.max_model_len,
        }
        return JsonResponse({"object": "list", "data": [entry]})

    async def _health(self, request: Request) -> Response:
        if not self.engine.is_alive:
            return unavailable(self.engine.failure or "the engine is not running")
        if self._draining:
            return unavailable(DRAINING)
        return Response(status_code=200)

    async def _metrics(self, request: Request) -> Response:
        page = metrics_text.render(
            self.engine.stats(), self._model, self.engine.capacity_tokens, self._kv_events
        )
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    async def _tokenize(self, request: Request) -> Response:
        try:
            body = await _read_body(request)
            if body is None:
                return _too_large()
            wanted = parse_tokenize(body)
            if wanted.model not in ("", self._model):
                return self._no_such_model(wanted.model)
            tokens = await self._encoder.tokenize(wanted)
        except RequestError as error:
            return _rejected(error)
        except ClientDisconnect:
            return Response(status_code=499)
        return JsonResponse(
            {"count": len(tokens), "max_model_len": self.engine.max_model_len, "tokens": tokens}
        )

    def _no_such_model(self, name: str) -> Response:
        message = f"the model {name!r} is not here; allowed: {self._model!r}"
        return error_answer(404, message, INVALID_REQUEST, "model", "model_not_found")

    async def _generate(self, kind: Kind, request: Request) -> Response:
        try:
            body = await _read_body(request)
            if body is None:
                return _too_large()
            wanted = parse(kind, body, with_tools=self._script is not None)
            if wanted.model != self._model:
                return self._no_such_model(wanted.model)
            token_ids = await self._encoder.encode(wanted)
            max_tokens = self._max_tokens(wanted, len(token_ids))
            bad_words = await self._encoder.bad_words(wanted.bad_words)
            grammar, called = await self._grammar(wanted, max_tokens)
            if called:
                # The mark of a call is no part of its text, whose beginning is the name.
                wanted = replace(wanted, skip_special=True)
        except RequestError as error:
            return _rejected(error)
        except ChecksFullError as error:
            return busy(str(error))
        except ClientDisconnect:
            return Response(status_code=499)
        if self._draining:  # also since the request arrived
            return unavailable(DRAINING)
        try:
            call, writer = self._submit(wanted, token_ids, max_tokens, grammar, bad_words, called)
        except (QueueFullError, EngineStoppedError) as error:
            return unavailable(str(error))
        if wanted.stream:
            return EventStream(call, writer, wanted)
        return WholeAnswer(call, writer, early_head=bool(wanted.call_id))

    async def _grammar(
        self, wanted: GenerationRequest, max_tokens: int
    ) -> tuple[Grammar | None, str]:
        """Return the grammar of the output, and the tool that it calls, which may be empty."""
        if self._script is not None:
            return await self._script.output(wanted, max_tokens)
        return await self._formats.grammar(wanted.output_format, wanted.client_id), ""

    def _max_tokens(self, wanted: GenerationRequest, prompt_tokens: int) -> int:
        room = self.engine.max_model_len - prompt_tokens
        asked = wanted.max_tokens or max(1, wanted.min_tokens)
        if asked > room:
            raise RequestError(
                f"this model's context is {self.engine.max_model_len} tokens; the prompt has "
                f"{prompt_tokens} and the output may have {asked}",
                "messages" if wanted.kind == "chat" else "prompt",
                "context_length_exceeded",
            )
        if wanted.max_tokens is None:
            return min(max(DEFAULT_MAX_TOKENS[wanted.kind], asked), room)
        return asked

    def _submit(
        self,
        wanted: GenerationRequest,
        token_ids: TokenIds,
        max_tokens: int,
        grammar: Grammar | None,
        bad_words: BadWords | None,
        called: str,
    ) -> tuple[EngineCall, EngineAnswerWriter]:
        prefix = "chatcmpl" if wanted.kind == "chat" else "cmpl"
        answer_id = f"{prefix}-{wanted.call_id or uuid.uuid4().hex}"
        # A caller may reuse a call id; the number keeps sequence ids apart.
        group_id = f"{answer_id}/{next(self._numbers)}"
        requests = [
            SequenceRequest(
                sequence_id=f"{group_id}-{index}",
                client_id=wanted.client_id,
                token_ids=token_ids,
                params=wanted.params(max_tokens, index, grammar, bad_words),
                group_id=group_id,
                weight=wanted.weight,
                expected_output_tokens=wanted.expected_output_tokens,
                salt=wanted.cache_salt,
            )
            for index in range(wanted.samples)
        ]
        call = EngineCall([each.sequence_id for each in requests], self._release)
        self.engine.submit(requests)
        # Events arrive through the loop, so none can arrive before this function ends.
        self._calls.update(dict.fromkeys(call.sequence_ids, call))
        self._idle.clear()
        writer = EngineAnswerWriter(
            kind=wanted.kind,
            answer_id=answer_id,
            created=int(time.time()),
            model=self._model,
            prompt_tokens=len(token_ids),
            outputs=call.outputs,
            texts=None if wanted.logprobs is None else self._texts,
            called=called,
        )
        return call, writer

    def _release(self, call: EngineCall, running: list[str]) -> None:
        for sequence_id in call.sequence_ids:
            self._calls.pop(sequence_id, None)
        if not self._calls:
            self._idle.set()
        if running:
            self.engine.cancel(running)

    # Events

    def _on_events(self, events: list[EngineEvent]) -> None:
        """Pass events to the loop; called in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._dispatch, events)
        except RuntimeError:
            # The loop is closed: the process is about to end.
            _log.debug("%d events arrived after the end", len(events))

    def _dispatch(self, events: list[EngineEvent]) -> None:
        for event in events:
            call = self._calls.get(event.sequence_id)
            if call is not None:
                call.put(event)


def _rejected(error: RequestError) -> Response:
    return error_answer(400, error.message, INVALID_REQUEST, error.param, error.code)


def _too_large() -> Response:
    message = f"the body is over {MAX_BODY_BYTES} bytes"
    return error_answer(413, message, INVALID_REQUEST, None, "body_too_large")


async def _read_body(request: Request) -> Any:
    """Return the decoded JSON body; None if it is too large."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
    try:
        return orjson.loads(b"".join(parts)) or {}
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}", None, "invalid_json") from error
