"""HTTP client of one worker in vLLM's dialect, over one shared aiohttp session.

It always streams (:meth:`WorkerRequest.wire_body`), parses server-sent events as they arrive, and
cancels a call on the worker by closing its connection, which is how both vLLM and the embedded
engine learn of it. Weakness: the dialect has no acknowledgement of a cancellation, so tokens that
the worker generates until it notices are not seen here.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from fairserve.engine.base import (
    KvEndpoints,
    WorkerChunk,
    WorkerFacts,
    WorkerRejectedError,
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""A single event longer than this ends the stream: it would be held in memory whole."""
MAX_ERROR_BYTES = 64 * 1024

_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_KV_EVENTS = re.compile(rb"^fairserve:kv_events_info\{([^}]*)\}", re.MULTILINE)
_ANY_HOST = re.compile(r"^tcp://(\*|0\.0\.0\.0|\[::\])(?=:)")
_LABEL = re.compile(rb'(\w+)="([^"]*)"')
_RETRYABLE_4XX = frozenset({408, 425, 429})


def worker_session() -> aiohttp.ClientSession:
    """A session for any number of workers; must be made and closed on the event loop."""
    # Workers close idle connections after 5 s (uvicorn's default): give them up before that, or a
    # call would now and then be sent into a connection that is being closed.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 17)


class HttpWorkerClient:
    """One worker at ``base_url`` (no trailing slash). Holds no connection of its own."""

    def __init__(self, base_url: str, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url
        self._session = session

    async def open(self, request: WorkerRequest) -> HttpWorkerStream:
        """Send a call; see :class:`fairserve.engine.base.WorkerClient`."""
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._session.post(
                self.base_url + request.path,
                data=orjson.dumps(request.wire_body()),
                headers={"content-type": "application/json", "accept": "text/event-stream"},
            )
            if response.status == 200:
                return HttpWorkerStream(response)
            error = _error_of(await response.content.read(MAX_ERROR_BYTES), response.status)
        except aiohttp.ClientConnectorError as failure:
            raise WorkerUnavailableError(f"no connection: {failure}", unreachable=True) from failure
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            if response is not None:
                response.close()
            raise WorkerUnavailableError(_describe(failure)) from failure
        except BaseException:
            if response is not None:
                response.close()
            raise
        status = response.status
        response.close()
        if 400 <= status < 500 and status not in _RETRYABLE_4XX:
            raise WorkerRejectedError(status, error)
        raise WorkerUnavailableError(f"it answered {status}: {error.get('message', '')}")

    async def healthy(self) -> bool:
        """Whether ``/health`` answers 200 within two seconds."""
        try:
            async with self._session.get(
                self.base_url + "/health", timeout=aiohttp.ClientTimeout(total=2.0)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def facts(self) -> WorkerFacts:
        """From ``/v1/models`` and ``/metrics`` (sizes of the cache, endpoints of KV events)."""
        timeout = aiohttp.ClientTimeout(total=5.0)
        try:
            async with self._session.get(self.base_url + "/v1/models", timeout=timeout) as response:
                response.raise_for_status()
                listing: dict[str, Any] = orjson.loads(await response.read())
            models = [entry for entry in listing["data"] if isinstance(entry.get("id"), str)]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as failure:
            raise WorkerUnavailableError(f"/v1/models: {_describe(failure)}") from failure
        try:
            async with self._session.get(self.base_url + "/metrics", timeout=timeout) as response:
                metrics = await response.read() if response.status == 200 else b""
        except (aiohttp.ClientError, TimeoutError, OSError):
            metrics = b""
        lengths = [m["max_model_len"] for m in models if isinstance(m.get("max_model_len"), int)]
        return WorkerFacts(
            models=tuple(entry["id"] for entry in models),
            context_tokens=min(lengths) if lengths else None,
            kv_capacity_tokens=kv_capacity_of(metrics),
            kv_events=kv_endpoints_of(metrics, self.base_url),
        )


class HttpWorkerStream:
    """The events of one answer, parsed as they come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self._buffer = b""
        self._events: deque[bytes] = deque()
        self._begun = False

    def __aiter__(self) -> HttpWorkerStream:
        return self

    async def __anext__(self) -> WorkerChunk:
        while not self._events:
            try:
                received = await self._content.readany()
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                raise self._broken(_describe(failure)) from failure
            if not received:
                raise self._broken("the connection ended without [DONE]")
            self._feed(received)
        raw = self._events.popleft()
        if raw == b"[DONE]":
            # Not released to the pool before its end was read: a worker that sends more is wrong.
            self._response.release()
            raise StopAsyncIteration
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError as failure:
            raise self._broken("it sent an event that is not JSON") from failure
        if not isinstance(data, dict):
            raise self._broken("it sent an event that is not an object")
        if data.get("error"):
            error = data["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise self._broken(f"it reported: {message}")
        self._begun = True
        return WorkerChunk(data, raw)

    def close(self) -> None:
        """Close the connection, which cancels the call if it still runs."""
        self._response.close()

    def _feed(self, received: bytes) -> None:
        lines = (self._buffer + received).split(b"\n")
        self._buffer = lines.pop()
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise self._broken(f"it sent an event over {MAX_EVENT_BYTES} bytes")
        for line in lines:
            # One line is one event here: the dialect never splits JSON over several data lines.
            # Comments (keep-alive) and other fields are skipped.
            if line.startswith(b"data:"):
                self._events.append(line[5:].strip())

    def _broken(self, why: str) -> WorkerStreamError | WorkerUnavailableError:
        self._response.close()
        return WorkerStreamError(why) if self._begun else WorkerUnavailableError(why)


def kv_capacity_of(metrics: bytes) -> int | None:
    """``block_size * num_gpu_blocks`` of the metrics text, or None where they are not told."""
    found = _CACHE_CONFIG.search(metrics)
    if found is None:
        return None
    labels = dict(_LABEL.findall(found.group(1)))
    try:
        capacity = int(labels[b"block_size"]) * int(labels[b"num_gpu_blocks"])
    except (KeyError, ValueError):
        return None
    return capacity if capacity > 0 else None


def kv_endpoints_of(metrics: bytes, base_url: str) -> KvEndpoints | None:
    """Where the worker publishes KV events, if its metrics say so (vLLM's do not).

    An endpoint at every address of the worker's machine is at that of ``base_url``.
    """
    found = _KV_EVENTS.search(metrics)
    if found is None:
        return None
    labels = {name: value.decode() for name, value in _LABEL.findall(found.group(1))}
    host = urlsplit(base_url).hostname or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    events, replay = (
        _ANY_HOST.sub(f"tcp://{host}", labels.get(name, ""))
        for name in (b"endpoint", b"replay_endpoint")
    )
    return KvEndpoints(events, replay) if events else None


def _error_of(body: bytes, status: int) -> dict[str, Any]:
    """The error object of an answer; vLLM wraps it in ``error``, older ones do not."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict):
        inner = parsed.get("error", parsed)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return inner
    text = body[:200].decode("utf-8", "replace")
    return {"message": text or f"status {status}", "type": "worker_error"}


def _describe(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
