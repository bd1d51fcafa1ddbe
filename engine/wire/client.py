"""HTTP client of one worker.

It uses vLLM's dialect, or the plain OpenAI API for servers of any other kind. It parses server-sent
events as they arrive, and cancels a call on the worker by closing its connection, which is how vLLM,
the embedded engine and most others detect it. Redirects are not followed: a call and its token reach
the configured address only.

A call whose client wants no stream is not streamed: vLLM answers it with nothing before its end, so
that its header has no time-out, and its start is learned elsewhere
(:mod:`fairserve.engine.wire.watched_client`). The embedded engine sends the header at the start.

Weakness: a cancellation is not acknowledged, so tokens that the worker generates until it notices
are not counted here.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import orjson

from fairserve.engine.wire.base import (
    AnswerReceiver,
    Exchange,
    FailureCause,
    HttpAnswer,
    SentCall,
    Transport,
    WorkerFacts,
    WorkerMetrics,
    WorkerRejectedError,
    WorkerRequest,
    WorkerUnavailableError,
)
from fairserve.engine.wire.connections import Origin, WorkerConnections
from fairserve.engine.wire.loop_turns import LoopTurns
from fairserve.engine.wire.reported_error import error_object, verdict_of
from fairserve.engine.wire.reported_usage import MAX_TOKENS, count_of
from fairserve.engine.wire.request_fields import ServerKind
from fairserve.engine.wire.tasks import GENERATE, Tasks, tasks_of
from fairserve.engine.wire.upstream_message import public_message, public_rejection
from fairserve.engine.wire.worker_answer import WorkerAnswer
from fairserve.engine.wire.worker_metrics import MAX_METRICS_BYTES, kv_endpoints_of, read_metrics
from fairserve.interactions.call import TokenIds

Dialect = Literal["vllm", "openai"]

BEGIN_S = 300.0
"""Seconds without the header of a stream, or without an answer to a pooling call, after which it is
abandoned."""
MAX_FACTS_BYTES = 4 * 1024 * 1024
"""Maximum size of a listing of models."""
TOKENIZE_S = 10.0
"""Maximum seconds for a worker to tokenise a prompt."""
MAX_TOKENS_BYTES = 64 * 1024 * 1024
"""Maximum size of a list of token ids."""
MAX_TEMPLATE_TOKENS = 1_024
"""Tokens that a template may add to a prompt; a token of the prompt has one byte or more."""
MAX_TOKEN_ID_BYTES = 64
"""Maximum size of one token in a list of them."""
MODELS_PROBE_S = 5.0
"""Minimum seconds between probes of a server without a health check, which lists its models."""
PAUSE_S = 1.0
"""Pause in seconds after a 429 without ``Retry-After``."""

_NO_SUCH_CHECK = frozenset({401, 403, 404, 405, 501})
_OUR_KINDS: Mapping[str, ServerKind] = {"fairserve": "embedded", "fairserve-demo": "demo"}
"""Kinds of our own workers by what ``/v1/models`` has as their owner."""
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Errors raised if a worker sends no answer, or one that is too long."""
_BAD_ANSWER = (*_NO_ANSWER, KeyError, TypeError, OverflowError)
"""Errors raised if a worker sends no answer, or one of an unexpected form."""
_SECRET_URL = re.compile(r"//[^/@\s]*@")


def worker_session() -> aiohttp.ClientSession:
    """Return a session for any number of workers; must be created and closed on the event loop."""
    # Workers close idle connections after 5 s (uvicorn's default). Close them earlier, or a call
    # would occasionally be sent into a connection that is being closed.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 17)


class HttpWorkerClient:
    """Client of the worker at ``base_url`` (no trailing slash). Owns no connection."""

    def __init__(
        self,
        base_url: str,
        session: aiohttp.ClientSession,
        dialect: Dialect = "vllm",
        *,
        begin_s: float = BEGIN_S,
        connections: WorkerConnections | None = None,
        turns: LoopTurns | None = None,
    ) -> None:
        """Send calls over ``connections``, and everything else in ``session``.

        ``connections`` and the ``turns`` of streams belong to all clients of the event loop; None: to
        this one.
        """
        self.base_url = base_url
        self.dialect: Dialect = dialect
        self.kind: ServerKind = dialect
        """Kind of server, which decides its fields; :meth:`facts` recognises our own worker."""
        self._session = session
        self._connections = WorkerConnections() if connections is None else connections
        self._origin = Origin(base_url)
        self._begin_s = begin_s
        self._turns = LoopTurns() if turns is None else turns
        self._headers: dict[str, str] = {}
        self._private: tuple[str, ...] = (urlsplit(base_url).hostname or "",)
        """Texts that are removed from the worker's errors before a client sees them."""
        self._well_until_s = 0.0

    def authorize(self, api_key: str) -> None:
        """Send this bearer token with every later request; empty: none."""
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._private = (self._private[0], api_key)

    @property
    def token_headers(self) -> Mapping[str, str]:
        """Return the headers that carry the bearer token; empty without one."""
        return self._headers

    def body_of(self, request: WorkerRequest) -> dict[str, Any]:
        """Return the body of a call for this kind of server."""
        return request.wire_body(self.kind) if self.dialect == "vllm" else request.plain_body()

    def reports_start(self, request: WorkerRequest) -> bool:
        """Return whether the server reports a call before its answer: by events, a header or metrics.

        A call of another kind counts as started when it is sent.
        """
        return request.streams or (request.generates and self.dialect == "vllm")

    @property
    def reports_admission(self) -> bool:
        """Return whether the server reports every call when it enters the batch, as our own does."""
        return self.kind in _OUR_KINDS.values()

    @property
    def counts_samples_apart(self) -> bool:
        """Return whether the running usage of a chunk counts its sample alone, as vLLM's does."""
        return self.kind == "vllm"

    @property
    def needs_done(self) -> bool:
        """Return whether the server ends a complete stream with ``[DONE]``."""
        return self.dialect == "vllm"

    def send(
        self, request: WorkerRequest, receiver: AnswerReceiver, transport: Transport | None = None
    ) -> SentCall:
        """Send a call; see :class:`fairserve.engine.wire.base.WorkerClient`."""
        if transport is None:
            answer = WorkerAnswer(self, request, receiver, self._turns, self._begin_s)
            answer.exchange = self._post(request, answer)
        else:
            answer = WorkerAnswer(self, request, receiver, None, None)
            answer.exchange = transport(request, answer)
        asyncio.get_running_loop().call_soon(answer.was_sent)
        return answer

    def _post(self, request: WorkerRequest, answer: HttpAnswer) -> Exchange:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if request.streams else "application/json",
            "user-agent": "fairserve",
            "x-request-id": request.call_id,
            **({"traceparent": request.traceparent} if request.traceparent else {}),
            **self._headers,
        }
        sent = self._origin.post(request.path, headers, orjson.dumps(self.body_of(request)))
        return self._connections.send(self._origin, sent, answer)

    @property
    def private(self) -> tuple[str, ...]:
        """Return the texts that are removed from the worker's errors before a client sees them."""
        return self._private

    def error_of_answer(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> WorkerUnavailableError | WorkerRejectedError:
        """Return the error for an answer to a call with a status other than 200.

        The names of the headers are in lower case.
        """
        error = _error_of(body, status)
        text = f"it answered {status}: {error['message']}"
        verdict = verdict_of(error, status)
        if verdict == "account":
            # A filter in front of a worker also answers 403, because of the content of a call.
            certain = status in (401, 402, 407)
            cause: FailureCause = "worker" if certain else "unknown"
            if certain or status == 403:
                text = f"it does not take our token or account ({status})"
            return WorkerUnavailableError(text, cause=cause, status=status)
        if status == 429:
            pause_s = _pause_of(headers)
            return WorkerUnavailableError(text, cause="busy", pause_s=pause_s, status=status)
        if verdict == "rejected":
            return public_rejection(WorkerRejectedError(status, error), self._private)
        client_message = public_message(error["message"], self._private)
        return WorkerUnavailableError(
            text, cause=verdict, client_message=client_message, status=status
        )

    # --- probes and facts -------------------------------------------------------------------------

    async def probe(self) -> str:
        """Check the worker's health. Return the problem, or an empty text. Takes at most four seconds.

        ``/health`` must answer 200. A server of another kind may lack it: one that lists its
        models, or requests a pause, is healthy.
        """
        now_s = time.monotonic()
        if now_s < self._well_until_s:
            return ""
        path = "/health"
        status = await self._status(path)
        well = status == 200
        if self.dialect == "openai" and status in _NO_SUCH_CHECK:
            path = "/v1/models"
            status = await self._status(path)
            well = status in (200, 429)
            self._well_until_s = now_s + MODELS_PROBE_S if well else 0.0
        if well:
            return ""
        return status if isinstance(status, str) else f"{path} answers {status}"

    async def _status(self, path: str) -> int | str:
        try:
            async with self._get(path, 2.0) as response:
                return int(response.status)
        except _NO_ANSWER as failure:
            return f"{path}: {_describe_unreached(failure)}"

    async def metrics(self) -> WorkerMetrics | None:
        """Return queue and KV pressure; None if the worker reports none, or has another dialect."""
        if self.dialect == "openai":
            return None
        text = await self._text("/metrics", 2.0)
        return read_metrics(text) if text else None

    async def facts(self, model: str = "") -> WorkerFacts:
        """Return the worker's facts from ``/v1/models`` and ``/openapi.json``, and vLLM's other pages.

        ``model`` is the one to serve, or a LoRA adapter of it; empty: the first listed one. Raises
        WorkerUnavailableError, or ValueError if the worker does not serve it.
        """
        models = await self._listing()
        names = tuple(models)
        if not names:
            raise ValueError("it serves no model")
        if model and model not in models:
            known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ValueError(f"it does not serve {model!r}; it serves {known}")
        chosen = _base_of(models, model or names[0])
        text, version, tokenizes, tasks = b"", None, False, GENERATE
        if self.dialect == "vllm":
            self.kind = _OUR_KINDS.get(str(models[chosen].get("owned_by")), "vllm")
            text, version = await self._text("/metrics", 5.0), await self._version()
            tokenizes = await self._tokenizes(chosen)
        if not self.reports_admission:
            tasks = await self._tasks()
        root = models[chosen].get("root")
        metrics = read_metrics(text)
        return WorkerFacts(
            models=names,
            context_tokens=_context_of(models, chosen),
            kv_capacity_tokens=metrics.kv_capacity_tokens,
            slots=metrics.slots,
            kv_events=kv_endpoints_of(text, self.base_url),
            model=chosen,
            adapters=_adapters_of(models, chosen),
            version=version,
            kind=self.kind,
            root=root if isinstance(root, str) else "",
            tokenizes=tokenizes,
            tasks=tasks,
        )

    async def with_adapters(self, facts: WorkerFacts) -> WorkerFacts:
        """Return the facts with the models and adapters that the worker lists now.

        Raises WorkerUnavailableError.
        """
        models = await self._listing()
        if facts.model not in models:
            raise WorkerUnavailableError(f"/v1/models lacks {facts.model!r}")
        adapters = _adapters_of(models, facts.model)
        return replace(facts, models=tuple(models), adapters=adapters)

    async def tokenize(self, body: Mapping[str, Any]) -> TokenIds:
        """Return the token ids of a prompt, by vLLM's ``/tokenize``.

        Raises WorkerRejectedError for a prompt that the worker rejects, WorkerUnavailableError for
        everything else, also for more tokens than the prompt can have.
        """
        data = orjson.dumps(body)
        most = len(data) + MAX_TEMPLATE_TOKENS
        try:
            async with self._session.post(
                self.base_url + "/tokenize",
                data=data,
                headers={"content-type": "application/json", **self._headers},
                timeout=aiohttp.ClientTimeout(total=TOKENIZE_S),
                allow_redirects=False,
            ) as response:
                answer = await _read(response, min(MAX_TOKENS_BYTES, MAX_TOKEN_ID_BYTES * most))
            if response.status in (400, 422):
                rejected = WorkerRejectedError(400, _error_of(answer, response.status))
                raise public_rejection(rejected, self._private)
            if response.status != 200:
                raise WorkerUnavailableError(f"/tokenize answers {response.status}")
            ids = _token_ids(orjson.loads(answer)["tokens"])
            if len(ids) > most:
                raise ValueError(f"it counts {len(ids)} tokens in {len(data)} bytes")
            return ids
        except _BAD_ANSWER as error:
            raise WorkerUnavailableError(f"/tokenize: {_describe_unreached(error)}") from error

    async def _tokenizes(self, model: str) -> bool:
        try:
            return len(await self.tokenize({"model": model, "prompt": "a"})) > 0
        except (WorkerUnavailableError, WorkerRejectedError):
            return False

    async def _tasks(self) -> Tasks:
        """Return the tasks of the paths that the server describes; without a description, generate."""
        try:
            description = orjson.loads(await self._text("/openapi.json", 5.0) or b"{}")
        except orjson.JSONDecodeError:
            return GENERATE
        paths = description.get("paths") if isinstance(description, dict) else None
        return tasks_of(paths if isinstance(paths, dict) else {})

    async def _listing(self) -> dict[str, dict[str, Any]]:
        try:
            async with self._get("/v1/models", 5.0) as response:
                if response.status != 200:
                    raise WorkerUnavailableError(f"/v1/models answers {response.status}")
                listing = orjson.loads(await _read(response, MAX_FACTS_BYTES))
            entries = [entry for entry in listing["data"] if isinstance(entry, dict)]
        except _BAD_ANSWER as error:
            raise WorkerUnavailableError(f"/v1/models: {_describe_unreached(error)}") from error
        return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}

    async def _version(self) -> str | None:
        try:
            answer = orjson.loads(await self._text("/version", 5.0) or b"{}")
        except orjson.JSONDecodeError:
            return None
        version = answer.get("version") if isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    async def _text(self, path: str, timeout_s: float) -> bytes:
        """Return the body of a page; empty if it cannot be read."""
        try:
            async with self._get(path, timeout_s) as response:
                return await _read(response, MAX_METRICS_BYTES) if response.status == 200 else b""
        except _NO_ANSWER:
            return b""

    def _get(self, path: str, timeout_s: float) -> Any:
        return self._session.get(
            self.base_url + path,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            headers=self._headers,
            allow_redirects=False,
        )


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body. Raises ValueError if it is longer than the limit."""
    body = await _read_some(response, limit + 1)
    if len(body) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    return body


async def _read_some(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the first ``limit`` bytes of the body."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) >= limit:
            response.close()
            break
    return bytes(body[:limit])


def _token_ids(tokens: Any) -> TokenIds:
    """Return the tokens of an answer. Raises ValueError, OverflowError or TypeError."""
    ids = np.asarray(tokens)
    # A prompt has tokens, so that a call is never counted as none.
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise ValueError("its tokens are not a list of ids")
    if ids.min() < 0 or ids.max() >= 1 << 32:
        raise ValueError("its tokens have an id beyond 32 bits")
    return ids.astype(np.uint32)


def _base_of(models: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return the base model of a listed LoRA adapter; any other model itself."""
    parent = models[name].get("parent")
    return parent if isinstance(parent, str) and parent in models else name


def _adapters_of(models: Mapping[str, Mapping[str, Any]], base: str) -> frozenset[str]:
    """Return the listed LoRA adapters of a model, whose parent may have another name of it."""
    parents = {name: _base_of(models, name) for name in models}
    root = models[base].get("root")
    return frozenset(
        name
        for name, parent in parents.items()
        if parent != name and (parent == base or (root and models[parent].get("root") == root))
    )


def _context_of(models: Mapping[str, Mapping[str, Any]], name: str) -> int | None:
    """Return the context of a model, else the minimum of all models."""
    if (length := _length_of(models[name])) is not None:
        return length
    lengths = map(_length_of, models.values())
    return min((length for length in lengths if length is not None), default=None)


def _length_of(entry: Mapping[str, Any]) -> int | None:
    """Return the context length in the field of vLLM and SGLang, or in that of llama.cpp.

    None: it has none that is usable.
    """
    meta = entry.get("meta")
    more = meta.get("n_ctx") if isinstance(meta, dict) else None
    lengths = (count_of(each, MAX_TOKENS) for each in (entry.get("max_model_len"), more))
    return next(filter(None, lengths), None)


def _pause_of(headers: Mapping[str, str]) -> float:
    """Return ``Retry-After`` in seconds, also if it is a date; a short pause if it is absent."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,20}(\.\d{1,20})?", value):
        return float(value)
    until_s = _date_s(value)
    if until_s is None:
        return PAUSE_S
    # By the server's own clock, which need not be ours.
    now_s = _date_s(headers.get("date", ""))
    return max(0.0, until_s - (time.time() if now_s is None else now_s))


def _date_s(value: str) -> float | None:
    """Return an HTTP date in seconds since 1970; None if it is none."""
    try:
        date = parsedate_to_datetime(value)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _error_of(body: bytes, status: int) -> dict[str, Any]:
    """Return the error object of an answer; a text stands for itself."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    if (error := error_object(parsed)) is not None:
        return error
    # Below 400 the body is no error, but an answer or a page.
    text = body[:200].decode("utf-8", "replace") if status >= 400 else ""
    return {"message": text or f"status {status}", "type": "worker_error"}


def _describe_unreached(failure: BaseException) -> str:
    """Return a failure as a text for operators, with addresses but without their credentials."""
    if (
        isinstance(failure, aiohttp.ClientConnectorError)
        and not isinstance(failure, aiohttp.ClientSSLError)  # its number is none of the system
        and (number := failure.os_error.errno or 0) > 0
    ):
        why = os.strerror(number)
        return f"cannot connect to {failure.host}:{failure.port}: {why}"
    name = type(failure).__name__
    return _SECRET_URL.sub("//", f"{name}: {failure}" if str(failure) else name)
