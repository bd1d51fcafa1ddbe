"""Spans of interactions and calls, in OpenTelemetry's GenAI conventions.

Listens to control. An interaction of several calls is a span ``invoke_workflow APP`` from its first call
to its end, and each call is a span ``chat MODEL`` (``text_completion``, ``embeddings``, ``rerank``) from
its submission to its end. A call whose request carries a trace context is a child of it and links to
its interaction; any other call is a child of its interaction. An interaction is a child of the context
of its first call. Calls link to their parents in the call graph. A call without an interaction id is
one span; if a rule finds the run that it continues, it is a child of the call before it.

A span names tenant, app, model and worker, never the user, the prompt or the answer; errors are named by
kind, because a worker's message may repeat the prompt. Only ``add_content`` adds prompt and answer.

Belongs to the event loop. Cost per call: two context lookups and one span, whose attributes are set only
if it is sampled.

Weaknesses: the span of an interaction begins with its first call, and begins again after a restart. A
link to a parent is missing once ``MAX_CONTEXTS`` later calls have begun.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairserve.interactions.tracking.identity import TRACEPARENT, client_call_id, client_run_id
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.listener import CallListener
from fairserve.platform.monitoring.tracing.content import input_text, output_text
from fairserve.scheduling.events import CallOutcome, InteractionEnded

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the semantic conventions whose names the spans use."""
MAX_RUNS = 10_000
MAX_CONTEXTS = 50_000
"""Spans of the latest calls, in progress or ended, that later calls can link to."""


class _Operation(NamedTuple):
    """The GenAI operation of an endpoint, and the prefix of the ids of its answers."""

    name: str
    prefix: str
    names_record: bool = False
    """True if the id of the call's record follows the prefix, else the client's id of the call."""


_CHAT = _Operation("chat", "chatcmpl-")
_OPERATIONS: Mapping[str, _Operation] = MappingProxyType(
    {
        "/v1/completions": _Operation("text_completion", "cmpl-"),
        "/v1/embeddings": _Operation("embeddings", "embd-"),
        "/v1/rerank": _Operation("rerank", "rerank-"),
        "/v1/messages": _Operation("chat", "msg_"),
        "/v1/responses": _Operation("chat", "resp_", names_record=True),
    }
)
_FAILED = frozenset({"failed", "expired"})
"""Outcomes that are errors. A client that disconnects is none."""
_PROPAGATOR = TraceContextTextMapPropagator()


class CallTracer(CallListener):
    """Makes the spans of all interactions and calls."""

    def __init__(self, tracer: Tracer, content_max_chars: int = 0) -> None:
        """``content_max_chars`` bounds the prompt, and the answer, of :meth:`add_content`."""
        self._tracer = tracer
        self._content_max_chars = content_max_chars
        self._runs: SharedTable[str, Span] = SharedTable(MAX_RUNS)
        """Spans of open interactions by run id."""
        self._calls: dict[str, Span] = {}
        """Spans of queued and running calls by record id; control bounds their number."""
        self._contexts: SharedTable[str, SpanContext] = SharedTable(MAX_CONTEXTS)
        """Contexts of sampled calls by the core's call id, in the order of their acceptance."""

    # --- events, see CallListener -----------------------------------------------------------------

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Begin the span of a call, and that of its interaction with its first call."""
        incoming = _incoming(call.source.traceparent)
        run = None if call.call.single else self._run_span(call, incoming)
        span = self._calls[call.record_id] = self._begin(call, incoming, run)
        context = span.get_span_context()
        call.traceparent = _traceparent(context)
        if span.is_recording():
            self._contexts.put((call.call.tenant,), call.call.call_id, context)

    def call_granted(self, call: CallState) -> None:
        """Add the event of a grant."""
        span = self._calls.get(call.record_id)
        if span is not None and span.is_recording():
            span.add_event("fairserve.granted", {"fairserve.worker": call.worker_id or ""})

    def call_requeued(self, call: CallState) -> None:
        """Add the event of a failed attempt."""
        span = self._calls.get(call.record_id)
        if span is not None and span.is_recording():
            span.add_event("fairserve.requeued")

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """End the span of a call with its usage and its times."""
        span = self._calls.pop(call.record_id, None)
        if span is None or not span.is_recording():
            return
        usage = call.usage
        found: dict[str, str | int | float | None] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.response.time_to_first_chunk": call.ttft_s,
            "fairserve.queue_time": call.queue_s,
            "fairserve.worker": call.worker_id,
        }
        span.set_attributes({name: value for name, value in found.items() if value is not None})
        if call.ttft_s is not None:
            first_ns = time.time_ns() - int((now_s - call.submitted_s - call.ttft_s) * 1e9)
            span.add_event("fairserve.first_token", timestamp=first_ns)
        _end(span, outcome, outcome if outcome in _FAILED else None)

    def call_dropped(self, call: CallState) -> None:
        """End the span of a call that the journal could not store."""
        span = self._calls.pop(call.record_id, None)
        if span is not None:
            _end(span, "failed", "journal_unavailable")

    def call_rejected(self, call: CallState, reason: str, now_s: float) -> None:
        """Make the span of a rejected call, with the reason. It begins no interaction."""
        run = self._runs.get(call.call.interaction_id)
        span = self._begin(call, _incoming(call.source.traceparent), run)
        _end(span, "rejected", reason)

    def run_ended(self, run: InteractionEnded) -> None:
        """End the span of an interaction."""
        span = self._runs.pop(run.interaction_id)
        if span is not None and span.is_recording():
            span.set_attributes({"fairserve.state": run.state, "fairserve.calls": run.calls})
            span.end()

    # --- content and the end of the server --------------------------------------------------------

    def add_content(
        self, record_id: str, body: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add the prompt and the answer, in OpenAI's form, to the span of a call that has not ended."""
        span = self._calls.get(record_id)
        if span is None or not span.is_recording():
            return
        span.set_attribute("gen_ai.input.messages", input_text(body, self._content_max_chars))
        span.set_attribute("gen_ai.output.messages", output_text(choices, self._content_max_chars))

    def close(self) -> None:
        """End the spans of open interactions: the server stops, and nothing ends them later."""
        for _, _, _, span in self._runs.items():
            span.end()
        self._runs = SharedTable(MAX_RUNS)

    # --- steps ------------------------------------------------------------------------------------

    def _run_span(self, call: CallState, incoming: SpanContext | None) -> Span:
        """Return the span of a call's interaction, which it may begin."""
        run_id, tenant, app = call.call.interaction_id, call.call.tenant, call.call.app
        span = self._runs.get(run_id)
        if span is not None:
            return span
        parent = _within(None if incoming is None else NonRecordingSpan(incoming))
        span = self._tracer.start_span(f"invoke_workflow {app}", parent, SpanKind.INTERNAL)
        if span.is_recording():
            span.set_attributes(
                {
                    "gen_ai.operation.name": "invoke_workflow",
                    "gen_ai.workflow.name": app,
                    "gen_ai.conversation.id": client_run_id(app, run_id),
                    "fairserve.tenant": tenant,
                    "fairserve.app": app,
                }
            )
        for evicted in self._runs.put((tenant,), run_id, span):
            evicted.set_attribute("fairserve.ended_early", True)
            evicted.end()
        return span

    def _begin(self, call: CallState, incoming: SpanContext | None, run: Span | None) -> Span:
        operation = _OPERATIONS.get(call.source.endpoint, _CHAT)
        known = (self._contexts.get(each) for each in call.call.parents or ())
        followed = [context for context in known if context is not None]
        parent = run if incoming is None else NonRecordingSpan(incoming)
        if parent is None and followed:  # a rule has found its run, which has no span
            parent = NonRecordingSpan(followed[0])
        span = self._tracer.start_span(
            f"{operation.name} {call.call.served_model or call.call.model}",
            _within(parent),
            SpanKind.CLIENT,
        )
        if not span.is_recording():
            return span
        span.set_attributes(_attributes(call, operation))
        if run is not None and incoming is not None:
            span.add_link(run.get_span_context())
        for context in followed:
            span.add_link(context)
        return span


def _attributes(call: CallState, operation: _Operation) -> dict[str, str | int]:
    core = call.call
    answered = client_call_id(core.interaction_id, core.call_id)
    if operation.names_record:
        answered = call.record_id
    found: dict[str, str | int] = {
        "gen_ai.operation.name": operation.name,
        "gen_ai.provider.name": "fairserve",
        "gen_ai.request.model": core.model,
        "gen_ai.response.model": core.served_model or core.model,
        "gen_ai.response.id": operation.prefix + answered,
        "gen_ai.conversation.id": client_run_id(core.app, core.interaction_id),
        "fairserve.request_id": call.record_id,
        "fairserve.tenant": core.tenant,
        "fairserve.app": core.app,
        "fairserve.stage": core.stage,
    }
    if core.agent is not None:
        found["gen_ai.agent.name"] = core.agent
    if core.max_output_tokens:
        found["gen_ai.request.max_tokens"] = core.max_output_tokens
    if core.samples != 1:
        found["gen_ai.request.choice.count"] = core.samples
    return found


def _within(parent: Span | None) -> Context:
    """Return the context of a span's children; without a parent that of a new trace."""
    return Context() if parent is None else set_span_in_context(parent, Context())


def _end(span: Span, outcome: str, error: str | None) -> None:
    span.set_attribute("fairserve.outcome", outcome)
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _incoming(traceparent: str) -> SpanContext | None:
    """Return the context that a client sent; None without one, or if it is malformed."""
    if not traceparent:
        return None
    context = get_current_span(_PROPAGATOR.extract({TRACEPARENT: traceparent})).get_span_context()
    return context if context.is_valid else None


def _traceparent(context: SpanContext) -> str:
    """Return a context in the form of the W3C header; only the sampled flag is passed on."""
    sampled = int(context.trace_flags.sampled)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{sampled:02x}"
