"""What the platform needs from a worker, whatever engine runs in it.

A worker is an OpenAI-compatible server; one that speaks vLLM's dialect is fair to clients by itself. The
platform sends it a call and reads a stream of chunks; everything that can go wrong falls into three
classes, because the platform treats them differently: nothing was generated and another worker may be
tried
(:class:`WorkerUnavailableError`), the worker refused the request itself
(:class:`WorkerRejectedError`), the stream broke (:class:`WorkerStreamError`).

A call that failed after its worker had it may have caused that failure itself: it is tried at two
workers at most, and counts against a worker only together with calls of other tenants
(:mod:`fairserve.engine.circuit`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fairserve.engine.request_fields import ServerKind, passed_on
from fairserve.interactions.call import NO_TOKENS, TokenIds

CompletionPath = Literal["/v1/chat/completions", "/v1/completions"]


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One call as a worker gets it."""

    path: CompletionPath
    body: Mapping[str, Any]
    """The client's JSON body, of which the worker gets the fields that it honours."""
    call_id: str
    client_id: str
    """Whom the worker's local scheduler is fair to."""
    weight: float = 1.0
    cache_salt: str = ""
    """Prompts with different salts share no cached prefix."""
    token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    """The prompt as the platform counts it, for a queue that stands before the worker."""
    max_output_tokens: int = 0
    """Of one sample; for that queue, too."""
    expected_output_tokens: int = 0
    """What its app's profile says that it generates, over all samples; 0: nothing."""
    tenant: str = ""
    """The tenant whose call it is; empty: the platform's own."""

    @property
    def sequences(self) -> int:
        """What the call is for the worker: one sequence for each sample."""
        samples = self.body.get("n")
        return samples if isinstance(samples, int) and samples > 0 else 1

    def wire_body(self, kind: ServerKind = "vllm") -> dict[str, Any]:
        """The body in vLLM's dialect: always streaming, with the usage in every chunk.

        A client that asked for one answer gets it from the merged chunks; the stream is what tells
        the schedulers how far the call is.
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
        """The body for any other OpenAI-compatible server: streaming, with the usage at the end.

        Its caches are not isolated: a salt has no effect there.
        """
        body = passed_on(self.path, "openai", self.body)
        return {**body, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class WorkerChunk:
    """One server-sent event of a worker's answer."""

    data: dict[str, Any]


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
    """All that it tells, LoRA adapters among them."""
    context_tokens: int | None
    """Longest prompt plus output that ``model`` takes; None if the worker does not say."""
    kv_capacity_tokens: int | None
    """Tokens that its KV cache holds; None if the worker does not say."""
    kv_events: KvEndpoints | None = None
    """None if it tells nothing of its cache, or does not say where."""
    model: str = ""
    """The one of ``models`` that it is to serve here."""
    version: str | None = None
    """What ``/version`` answers; None if it does not."""
    kind: ServerKind = "vllm"
    """Kind of server, which decides the fields of a request that it honours."""
    root: str = ""
    """Folder or hub id that ``model`` was loaded from, as the worker calls it; empty: not known."""
    tokenizes: bool = False
    """It answers ``/tokenize`` for ``model``."""


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Queue and KV pressure as a worker tells them; None for what it does not."""

    running: int | None = None
    """Sequences in its batch, whoever sent them."""
    waiting: int | None = None
    kv_used_share: float | None = None
    """Of the cache, 0 to 1: what running sequences hold; what is only cached counts as free."""
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    """Of those, since it started."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None


FailureCause = Literal["worker", "busy", "silent", "unknown", "failed"]
"""Why a call failed. ``worker``: the worker is at fault for certain. ``busy``: it takes no call now.
``silent``: it had the call and gave no answer, by a time-out or a broken connection. ``unknown``: it
had the call, and its answer does not say why it failed. ``failed``: it had the call and answered with
an error.

The circuit counts ``worker`` and ``silent`` against the worker, the others only if calls of several
tenants meet them. A call that was ``silent``, ``unknown`` or ``failed`` twice is not tried again.
"""


class WorkerError(Exception):
    """A worker did not do what it was asked. The text is for operators, and names addresses."""


class WorkerUnavailableError(WorkerError):
    """The worker has not begun to answer: the same call may be sent to another one.

    ``unreachable`` is set where nobody listens at its address; ``pause_s`` where it is well and asks
    for a pause of so many seconds (429). ``said`` is the worker's message, fit for the call's client.
    """

    def __init__(
        self,
        message: str,
        *,
        unreachable: bool = False,
        pause_s: float | None = None,
        cause: FailureCause = "worker",
        said: str = "",
    ) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        self.pause_s = pause_s
        self.cause: FailureCause = cause
        self.said = said


@dataclass(eq=False)
class WorkerRejectedError(WorkerError):
    """The worker refused the request with a 4xx; ``error`` is the object of its answer."""

    status: int
    error: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the worker refused the call ({self.status}): {self.error.get('message', '')}"


class WorkerStreamError(WorkerError):
    """The worker had begun to answer and broke off, or sent an error in its stream.

    ``cause`` and ``said`` as in :class:`WorkerUnavailableError`.
    """

    def __init__(self, message: str, *, cause: FailureCause = "silent", said: str = "") -> None:
        super().__init__(message)
        self.cause: FailureCause = cause
        self.said = said


class WorkerStream(Protocol):
    """The chunks of one answer. Ends by StopAsyncIteration after the worker's ``[DONE]``."""

    def __aiter__(self) -> AsyncIterator[WorkerChunk]:
        """The stream itself; it can be read once."""
        ...

    async def __anext__(self) -> WorkerChunk:
        """The next chunk.

        Raises WorkerUnavailableError if the connection ends before the first chunk,
        WorkerStreamError if it ends later, and WorkerRejectedError for an error event that rejects
        the request itself.
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
