"""The platform's interface to a worker, whatever engine runs in it.

A worker is an OpenAI-compatible server; one that speaks vLLM's dialect is fair to clients by itself. The
platform sends it a call and reads a stream of chunks. Failures fall into three classes, which the
platform treats differently: nothing was generated and another worker may be tried
(:class:`WorkerUnavailableError`), the worker rejected the request itself
(:class:`WorkerRejectedError`), the stream broke (:class:`WorkerStreamError`).

A call that failed after its worker had it may have caused that failure itself: it is tried at two
workers at most, and counts against a worker only together with calls of other tenants
(:mod:`fairserve.engine.wire.circuit`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fairserve.engine.wire.request_fields import ServerKind, passed_on
from fairserve.interactions.call import NO_TOKENS, TokenIds

CompletionPath = Literal["/v1/chat/completions", "/v1/completions"]


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A call as it is sent to a worker."""

    path: CompletionPath
    body: Mapping[str, Any]
    """JSON body of the client; the worker gets the fields of it that it honours."""
    call_id: str
    client_id: str
    """Client of the worker's local scheduler: the unit of fairness there."""
    weight: float = 1.0
    cache_salt: str = ""
    """Prompts with different salts share no cached prefix."""
    token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    """Prompt as the platform counts it, for a queue in front of the worker."""
    max_output_tokens: int = 0
    """Limit of one sample, for that queue, too."""
    expected_output_tokens: int = 0
    """Forecast by the profile of its app, over all samples; 0: no forecast."""
    tenant: str = ""
    """Tenant of the call; empty: the platform itself."""

    @property
    def sequences(self) -> int:
        """Sequences that the worker runs for the call: one for each sample."""
        samples = self.body.get("n")
        return samples if isinstance(samples, int) and samples > 0 else 1

    def wire_body(self, kind: ServerKind = "vllm") -> dict[str, Any]:
        """Return the body in vLLM's dialect: always streaming, with the usage in every chunk.

        A client that asked for one answer gets it from the merged chunks; the stream reports the
        progress of the call to the schedulers.
        """
        body = passed_on(self.path, kind, self.body)
        body["stream"] = True
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body["vllm_xargs"] = {
            "client_id": self.client_id,
            "call_id": self.call_id,
            "weight": self.weight,
        }
        if self.expected_output_tokens:
            expected = self.expected_output_tokens // self.sequences
            body["vllm_xargs"]["expected_output_tokens"] = expected
        if self.cache_salt:
            body["cache_salt"] = self.cache_salt
        return body

    def plain_body(self) -> dict[str, Any]:
        """Return the body for any other OpenAI-compatible server: streaming, the usage at the end.

        Its caches are not isolated: a salt has no effect there.
        """
        body = passed_on(self.path, "openai", self.body)
        return {**body, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class WorkerChunk:
    """A server-sent event of a worker's answer."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KvEndpoints:
    """Endpoints of the events of a worker's prefix cache (:mod:`fairserve.engine.kv_events.dialect`)."""

    events: str
    replay: str = ""
    """Empty: missed batches are not available again."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Facts that a worker reports of itself once it is up."""

    models: tuple[str, ...]
    """All models that it lists, LoRA adapters among them."""
    context_tokens: int | None
    """Longest prompt plus output of ``model`` in tokens; None if the worker does not report it."""
    kv_capacity_tokens: int | None
    """Tokens that its KV cache holds; None if the worker does not report it."""
    kv_events: KvEndpoints | None = None
    """None if it publishes no events of its cache, or does not report the endpoints."""
    model: str = ""
    """Model of ``models`` that it serves for the platform."""
    version: str | None = None
    """Answer of ``/version``; None if there is none."""
    kind: ServerKind = "vllm"
    """Kind of server, which decides the fields of a request that it honours."""
    root: str = ""
    """Folder or hub id that ``model`` was loaded from, as the worker names it; empty: unknown."""
    tokenizes: bool = False
    """True if it answers ``/tokenize`` for ``model``."""


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Queue and KV pressure that a worker reports; None for a metric that it does not report."""

    running: int | None = None
    """Sequences in its batch, from all senders."""
    waiting: int | None = None
    kv_used_share: float | None = None
    """Share of the cache that running sequences hold, 0 to 1; blocks that are only cached are free."""
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    """Prompt tokens found in the prefix cache, of those looked up since the worker started."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None


FailureCause = Literal["worker", "busy", "silent", "unknown", "failed"]
"""Cause of a failed call. ``worker``: certainly the worker. ``busy``: it accepts no call now.
``silent``: it had the call and did not answer: a time-out or a broken connection. ``unknown``: it had
the call, and its answer does not name the cause. ``failed``: it had the call and answered with an error.

The circuit counts ``worker`` and ``silent`` against the worker, the others only if calls of several
tenants meet them. A call that was ``silent``, ``unknown`` or ``failed`` twice is not tried again.
"""


class WorkerError(Exception):
    """A worker did not serve a call. The text is for operators, and names addresses."""


class WorkerUnavailableError(WorkerError):
    """The worker has not begun to answer: the same call may be sent to another one.

    ``unreachable`` is set if its address has no listener; ``pause_s`` if it is healthy and asks for a
    pause of so many seconds (429). ``client_message`` is the worker's message, fit for the client;
    ``status`` the HTTP status of its answer, if it sent one.
    """

    def __init__(
        self,
        message: str,
        *,
        unreachable: bool = False,
        pause_s: float | None = None,
        cause: FailureCause = "worker",
        client_message: str = "",
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.unreachable = unreachable
        self.pause_s = pause_s
        self.cause: FailureCause = cause
        self.client_message = client_message


@dataclass(eq=False)
class WorkerRejectedError(WorkerError):
    """The worker rejected the request with a 4xx; ``error`` is the object of its answer."""

    status: int
    error: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the worker rejected the call ({self.status}): {self.error.get('message', '')}"


class WorkerStreamError(WorkerError):
    """The worker began to answer and broke off, or sent an error in its stream.

    ``cause`` and ``client_message`` as in :class:`WorkerUnavailableError`.
    """

    def __init__(
        self, message: str, *, cause: FailureCause = "silent", client_message: str = ""
    ) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause
        self.client_message = client_message


class WorkerStream(Protocol):
    """The chunks of one answer. Ends by StopAsyncIteration after the worker's ``[DONE]``."""

    def __aiter__(self) -> AsyncIterator[WorkerChunk]:
        """Return the stream itself; it can be read once."""
        ...

    async def __anext__(self) -> WorkerChunk:
        """Return the next chunk.

        Raises WorkerUnavailableError if the connection ends before the first chunk,
        WorkerStreamError if it ends later, and WorkerRejectedError for an error event that rejects
        the request itself.
        """
        ...

    def close(self) -> None:
        """Stop reading, which cancels a running call on the worker. May be repeated."""
        ...


class WorkerClient(Protocol):
    """The platform's side of the connection to one worker."""

    async def open(self, request: WorkerRequest) -> WorkerStream:
        """Send a call; returns once the worker has accepted it (its HTTP header has arrived).

        Raises WorkerUnavailableError or WorkerRejectedError.
        """
        ...
