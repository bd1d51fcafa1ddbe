"""The platform's interface to a worker, independent of its engine.

A worker is an OpenAI-compatible server; one that supports vLLM's dialect schedules clients fairly
by itself. The platform sends it a call and reads a stream of chunks. Failures fall into three
classes, which the platform handles differently: nothing was generated and another worker may be
tried (:class:`WorkerUnavailableError`), the worker rejected the request itself
(:class:`WorkerRejectedError`), the stream broke (:class:`WorkerStreamError`).

A call that failed after its worker had received it may have caused the failure: it is tried at two
workers at most, and counts against a worker only together with calls of other tenants
(:mod:`fairserve.engine.wire.circuit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from fairserve.engine.wire.event_form import EventForm
from fairserve.engine.wire.reported_usage import UsageBounds, count_of, read_usage
from fairserve.engine.wire.request_fields import ServerKind, passed_on
from fairserve.engine.wire.tasks import EMBEDDINGS, GENERATE, TASK_OF_PATH, Tasks, WorkerPath
from fairserve.interactions.call import NO_TOKENS, TokenIds

_TEXTS = frozenset(
    {"text", "delta", "message", "content", "reasoning", "reasoning_content", "thinking"}
    | {"refusal", "tool_calls", "function_call", "function", "name", "arguments"}
)
"""Fields of a choice that hold text, or have fields that do."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A call as sent to a worker."""

    path: WorkerPath
    body: Mapping[str, Any]
    """JSON body of the client; the worker receives the fields that it honours."""
    call_id: str
    client_id: str
    """Client of the worker's local scheduler: the unit of fairness there."""
    weight: float = 1.0
    cache_salt: str = ""
    """Cache isolation domain: prompts with different salts share no cached prefix."""
    token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    """Prompt as counted by the platform, for a queue in front of the worker."""
    max_output_tokens: int = 0
    """Maximum output tokens of one sample, also for that queue."""
    expected_output_tokens: int = 0
    """Output tokens predicted by the app's profile, over all samples; 0: no prediction."""
    tenant: str = ""
    """Tenant of the call; empty: the platform itself."""
    input_tokens: int = 0
    """Tokens of all inputs; 0: those of ``token_ids``."""
    stream: bool = True
    """The client gets the output as it arrives; else a worker that generates sends it whole."""
    traceparent: str = ""
    """W3C trace context of the call, a header; empty: none is sent."""

    @property
    def generates(self) -> bool:
        """Return whether the worker generates an output."""
        return TASK_OF_PATH[self.path] == "generate"

    @property
    def streams(self) -> bool:
        """Return whether the worker streams its answer; else it is one JSON object."""
        return self.stream and self.generates

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens that the worker reads."""
        return self.input_tokens or len(self.token_ids)

    @property
    def sequences(self) -> int:
        """Return the number of sequences that the worker runs for the call.

        It runs one for each sample, each input of an embedding call, or each document.
        """
        if self.generates:
            samples = self.body.get("n")
            return samples if isinstance(samples, int) and samples > 0 else 1
        inputs = self.body["input" if self.path == EMBEDDINGS else "documents"]
        return 1 if isinstance(inputs, str) or isinstance(inputs[0], int) else len(inputs)

    @property
    def usage_bounds(self) -> UsageBounds:
        """Return what the worker can report of the output at most; the prompt's bound is not known."""
        samples = self.sequences if self.generates else 0
        return UsageBounds(output_tokens=samples * self.max_output_tokens)

    def wire_body(self, kind: ServerKind = "vllm") -> dict[str, Any]:
        """Return the body in vLLM's dialect; a stream has the usage in every chunk."""
        body = passed_on(self.path, kind, self.body)
        if self.cache_salt:
            body["cache_salt"] = self.cache_salt
        if not self.generates:
            return body
        body["stream"] = self.stream
        body.pop("stream_options", None)
        if self.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body["vllm_xargs"] = {
            "client_id": self.client_id,
            "call_id": self.call_id,
            "weight": self.weight,
        }
        if self.expected_output_tokens:
            expected = self.expected_output_tokens // self.sequences
            body["vllm_xargs"]["expected_output_tokens"] = expected
        return body

    def plain_body(self) -> dict[str, Any]:
        """Return the body for any other OpenAI-compatible server; a stream has the usage at its end.

        Its cache is not isolated: a salt has no effect there.
        """
        body = passed_on(self.path, "openai", self.body)
        if not self.generates:
            return body
        body.pop("stream_options", None)
        if not self.stream:
            return {**body, "stream": False}
        return {**body, "stream": True, "stream_options": {"include_usage": True}}


class WorkerChunk:
    """A server-sent event of a worker's response, or the whole response if it is one object.

    Its shape has been checked (:mod:`fairserve.engine.wire.answer_shape`). One of a known ``form`` has
    nothing new but a text, and perhaps a count of tokens: its readers need no object.
    """

    __slots__ = ("_data", "_text", "form", "output_tokens", "raw_text")

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        form: EventForm | None = None,
        raw_text: bytes = b"",
        output_tokens: int | None = None,
    ) -> None:
        """Hold an object, or the text of an event with a form, as it is in JSON, and its count."""
        self._data = data
        self._text: str | None = None
        self.form = form
        self.raw_text = raw_text
        self.output_tokens = output_tokens

    @property
    def text(self) -> str:
        """Return the text of an event with a form."""
        if self._text is None:
            raw = self.raw_text
            self._text = raw.decode() if b"\\" not in raw else orjson.loads(b'"' + raw + b'"')
        return self._text

    @property
    def text_bytes(self) -> int:
        """Return the length of that text in UTF-8."""
        raw = self.raw_text
        return len(raw) if b"\\" not in raw else len(self.text.encode())

    @property
    def data(self) -> dict[str, Any]:
        """Return the event as an object."""
        if self._data is None:
            assert self.form is not None, "it has an object or a form"
            self._data = self.form.chunk_with(self.text, self.output_tokens)
        return self._data

    @property
    def outputs(self) -> int:
        """Return the number of choices with output: a lower bound of its tokens."""
        if self.form is not None:
            return 1
        return sum(map(has_output, self.data.get("choices") or ()))

    @property
    def has_content(self) -> bool:
        """Return whether a choice carries output or its end; the role alone is neither."""
        return self.form is not None or any(map(has_content, self.data["choices"]))

    def reported_output(self, bounds: UsageBounds) -> int | None:
        """Return the count of output tokens that it reports; None without a usable one."""
        if self.form is not None:
            return count_of(self.output_tokens, bounds.output_tokens)
        return read_usage(self.data.get("usage"), bounds).output_tokens


@dataclass(frozen=True, slots=True)
class KvEndpoints:
    """Endpoints of a worker's KV events (:mod:`fairserve.engine.kv_events.dialect`)."""

    events: str
    replay: str = ""
    """Endpoint of replays; empty: missed batches cannot be requested."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Facts that a worker reports about itself once it is up."""

    models: tuple[str, ...]
    """All listed models, including LoRA adapters."""
    context_tokens: int | None
    """Maximum prompt plus output tokens of ``model``; None if the worker does not report it."""
    kv_capacity_tokens: int | None
    """Capacity of its KV cache in tokens; None if the worker does not report it."""
    kv_events: KvEndpoints | None = None
    """Endpoints of its KV events; None if there are none, or they are not reported."""
    model: str = ""
    """Model of ``models`` that it serves for the platform."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters of ``model`` among ``models``, served too."""
    version: str | None = None
    """Answer of ``/version``; None if there is none."""
    kind: ServerKind = "vllm"
    """Kind of server, which decides the request fields that it honours."""
    root: str = ""
    """Folder or hub id from which ``model`` was loaded, as reported; empty: unknown."""
    tokenizes: bool = False
    """True if it answers ``/tokenize`` for ``model``."""
    tasks: Tasks = GENERATE
    """Tasks of ``model``, as far as the server describes its paths."""
    slots: int | None = None
    """Sequences that it runs at a time; None if the worker does not report it."""


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Queue and KV pressure reported by a worker; None for a metric that it does not report."""

    running: int | None = None
    """Sequences in its batch, from all senders."""
    waiting: int | None = None
    kv_used_share: float | None = None
    """Share of the cache held by running sequences, 0 to 1; blocks that are only cached are free."""
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    """Prompt tokens found in the prefix cache, of those looked up since the worker started."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None
    slots: int | None = None
    """Sequences that it runs at a time, at most."""


FailureCause = Literal["worker", "busy", "silent", "unknown", "failed"]
"""Cause of a failed call. ``worker``: certainly the worker. ``busy``: it accepts no call now.
``silent``: it received the call and did not answer (time-out or broken connection). ``unknown``: it
received the call, and its answer does not name the cause. ``failed``: it received the call and
answered with an error.

The circuit counts ``worker`` and ``silent`` against the worker, the others only if they affect
calls of several tenants. A call that was ``silent``, ``unknown`` or ``failed`` twice is not tried
again.
"""


class WorkerError(Exception):
    """A worker did not serve a call. The text is for operators, and contains addresses."""


class WorkerUnavailableError(WorkerError):
    """The worker did not begin to answer, so the call may be sent to another one.

    ``unreachable`` is set if its address has no listener; ``pause_s`` if it is healthy and requests
    a pause of this many seconds (429). ``client_message`` is the worker's message, safe for the
    client. ``status`` is the HTTP status of its answer, if it sent one.
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
    """The worker rejected the request with a 4xx; ``error`` is the object in its answer."""

    status: int
    error: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the worker rejected the call ({self.status}): {self.error.get('message', '')}"


class WorkerStreamError(WorkerError):
    """The worker began to answer and stopped, or sent an error in its stream.

    ``cause`` and ``client_message`` as in :class:`WorkerUnavailableError`.
    """

    def __init__(
        self, message: str, *, cause: FailureCause = "silent", client_message: str = ""
    ) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause
        self.client_message = client_message


class MalformedAnswerError(WorkerStreamError):
    """The worker's answer is not what its protocol prescribes. The text has nothing of the worker's."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="failed", client_message=message)


class AnswerReceiver(Protocol):
    """Receives one answer, by calls on the event loop. After its end or failure nothing more comes."""

    def started(self) -> None:
        """Take that the worker has started a call whose answer is one object, or is assumed to. Once."""
        ...

    def received(self, chunks: list[WorkerChunk]) -> None:
        """Take the events that have arrived together, at least one."""
        ...

    def ended(self) -> None:
        """Take the worker's end of a complete answer."""
        ...

    def failed(self, error: WorkerError) -> None:
        """Take the failure.

        WorkerUnavailableError before the first chunk, WorkerStreamError after it, WorkerRejectedError if
        the request itself is rejected.
        """
        ...


class SentCall(Protocol):
    """A call that was sent to a worker."""

    @property
    def may_have_begun(self) -> bool:
        """Return whether the worker may work on it, though it has reported nothing of it."""
        ...

    def close(self) -> None:
        """Want nothing more, which cancels a running call on the worker. May be repeated."""
        ...

    def pause(self) -> None:
        """Receive nothing until :meth:`resume`: the reader lags."""
        ...

    def resume(self) -> None:
        """Receive again."""
        ...


class Exchange(Protocol):
    """The connection that carries a request and its answer."""

    def close(self) -> None:
        """Want nothing more: the worker sees the end of the connection."""
        ...

    def pause(self) -> None:
        """Read nothing."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def expect_end(self) -> None:
        """Take that the answer is complete, though its last bytes may not have arrived."""
        ...


class HttpAnswer(Protocol):
    """Receives the parts of one HTTP answer. After its end or loss nothing more is called."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head; the names of the headers are in lower case."""
        ...

    def data(self, data: bytes) -> None:
        """Take a part of the body, which is not empty."""
        ...

    def end(self) -> None:
        """Take the end of the body."""
        ...

    def lost(self, why: str, *, unreachable: bool) -> None:
        """Take the loss of the connection, or bytes that are no HTTP.

        ``unreachable``: there was no connection, so that nothing was sent.
        """
        ...


Transport = Callable[[WorkerRequest, HttpAnswer], Exchange]
"""Sends a call now, and has its answer received."""


class WorkerClient(Protocol):
    """The platform's client of one worker."""

    def send(
        self, request: WorkerRequest, receiver: AnswerReceiver, transport: Transport | None = None
    ) -> SentCall:
        """Send a call, over our own connections unless another ``transport`` is given.

        The receiver is never called before this returns.
        """
        ...


# --- what a choice of a chunk carries -----------------------------------------------------------------


def has_content(choice: Any) -> bool:
    """Return whether a choice of a chunk carries output or its end; the role alone is neither."""
    return has_output(choice) or (
        isinstance(choice, dict) and choice.get("finish_reason") is not None
    )


def has_output(choice: Any) -> bool:
    """Return whether a choice of a chunk carries output: at least one token."""
    if not isinstance(choice, dict):
        return False
    if choice.get("text"):
        return True
    delta = choice.get("delta") or choice.get("message")  # the latter in an answer of one object
    if not isinstance(delta, dict):
        return False
    # A generator would take three times as long, for every chunk.
    for name, value in delta.items():  # noqa: SIM110
        if value and name != "role":
            return True
    return False


def output_size(chunk: dict[str, Any]) -> tuple[int, int]:
    """Return the number of choices with output, and the bytes of their text, tool calls included."""
    chunks = size = 0
    for choice in chunk.get("choices") or ():
        if has_output(choice):
            chunks += 1
            size += _bytes(choice)
    return chunks, size


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    if isinstance(value, dict):
        size = 0
        for name, each in value.items():
            if each and name in _TEXTS:
                size += _bytes(each)
        return size
    return 0
