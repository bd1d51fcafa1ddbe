"""What the platform needs from a worker, whatever engine runs in it.

A worker is an OpenAI-compatible server that speaks vLLM's dialect. The platform sends it a call and
reads a stream of chunks; everything that can go wrong falls into three classes, because the platform
treats them differently: nothing was generated and another worker may be tried
(:class:`WorkerUnavailableError`), the worker refused the request itself
(:class:`WorkerRejectedError`), the stream broke (:class:`WorkerStreamError`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

CompletionPath = Literal["/v1/chat/completions", "/v1/completions"]


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One call as a worker gets it."""

    path: CompletionPath
    body: Mapping[str, Any]
    """The client's JSON body without what only the platform understands."""
    call_id: str
    client_id: str
    """Whom the worker's local scheduler is fair to."""
    weight: float = 1.0
    cache_salt: str = ""
    """Prompts with different salts share no cached prefix."""

    def wire_body(self) -> dict[str, Any]:
        """The body that is sent: always streaming, with the usage in every chunk.

        A client that asked for one answer gets it from the merged chunks; the stream is what tells
        the schedulers how far the call is.
        """
        body = dict(self.body)
        body["stream"] = True
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body["vllm_xargs"] = {
            "client_id": self.client_id,
            "call_id": self.call_id,
            "weight": self.weight,
        }
        if self.cache_salt:
            body["cache_salt"] = self.cache_salt
        return body


@dataclass(frozen=True, slots=True)
class WorkerChunk:
    """One server-sent event of a worker's answer."""

    data: dict[str, Any]
    raw: bytes
    """The JSON text as it came, without ``data:`` and line ends."""


@dataclass(frozen=True, slots=True)
class KvEndpoints:
    """Where a worker tells what becomes of its prefix cache (:mod:`fairserve.engine.kv_events`)."""

    events: str
    replay: str = ""
    """Empty: batches that were missed cannot be had."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself once it is up."""

    models: tuple[str, ...]
    context_tokens: int | None
    """Longest prompt plus output that the model takes; None if the worker does not say."""
    kv_capacity_tokens: int | None
    """Tokens that its KV cache holds; None if the worker does not say."""
    kv_events: KvEndpoints | None = None
    """None if it tells nothing of its cache, or does not say where."""


class WorkerError(Exception):
    """A worker did not do what it was asked."""


class WorkerUnavailableError(WorkerError):
    """The worker has not begun to answer: the same call may be sent to another one.

    ``unreachable`` is set where nobody listens at its address.
    """

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


@dataclass(eq=False)
class WorkerRejectedError(WorkerError):
    """The worker refused the request with a 4xx; ``error`` is the object of its answer."""

    status: int
    error: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the worker refused the call ({self.status}): {self.error.get('message', '')}"


class WorkerStreamError(WorkerError):
    """The worker had begun to answer and broke off, or sent an error in its stream."""


class WorkerStream(Protocol):
    """The chunks of one answer. Ends by StopAsyncIteration after the worker's ``[DONE]``."""

    def __aiter__(self) -> AsyncIterator[WorkerChunk]:
        """The stream itself; it can be read once."""
        ...

    async def __anext__(self) -> WorkerChunk:
        """The next chunk.

        Raises WorkerUnavailableError if the connection ends before the first chunk and
        WorkerStreamError if it ends later.
        """
        ...

    def close(self) -> None:
        """Stop reading; a call that still runs is cancelled on the worker. May be repeated."""
        ...


class WorkerClient(Protocol):
    """The platform's side of the connection to one worker."""

    async def open(self, request: WorkerRequest) -> WorkerStream:
        """Send a call; returns once the worker has accepted it (its HTTP header is there).

        Raises WorkerUnavailableError or WorkerRejectedError.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the worker answers its health check."""
        ...

    async def facts(self) -> WorkerFacts:
        """Its models and sizes. Raises WorkerUnavailableError."""
        ...
