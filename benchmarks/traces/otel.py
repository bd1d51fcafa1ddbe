"""Conversion of OpenTelemetry spans of GenAI clients and agents to interactions.

A *call* is a span whose ``gen_ai.operation.name`` is one of `OPERATIONS`, or that lacks the name
and has ``gen_ai.input.messages``. A span that encloses another call is a wrapper, not a call; nor
is a call that failed without an answer. All other spans (agents, tools, servers) only provide names
and times. The calls of a session form one interaction, or those of a trace if no session is named;
its arrival is the start of its earliest span, counted from the earliest of the file. A call's gap
runs from the last end of its dependencies (`otel_dependencies`), or from the arrival. Counts are
those of ``gen_ai.usage``, or else estimated from the text (`otel_messages`); a limit such as
``max_tokens`` is never taken for an output.

Prompts share blocks as far as their texts begin alike. A block is 16 tokens of text: 64 characters,
or, if the file has usage, the mean number of characters of 16 of its prompt tokens. The trace keeps
counts and ids, never text.

Weaknesses: values that clients do not record are guessed; the two modules named above describe how,
and where that fails. Texts in span events or in attributes of single messages are not read. Tokens
that are counted but not in the text, such as tool definitions, are spread evenly over the prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairserve.benchmarks.traces.generate.block_ids import BLOCK_TOKENS, BlockIds
from fairserve.benchmarks.traces.otel_dependencies import Answered, direct_dependencies
from fairserve.benchmarks.traces.otel_messages import (
    CHARACTERS_PER_TOKEN,
    INPUT,
    OUTPUT_TEXT,
    Messages,
    block_runs,
    estimated_tokens,
    read_output,
    read_prompt,
)
from fairserve.benchmarks.traces.otel_spans import Span, SpanKey, read_spans
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import shown, trace_name
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall, TraceError

OPERATION = "gen_ai.operation.name"
OPERATIONS = ("chat", "text_completion", "generate_content")
SESSIONS = ("gen_ai.conversation.id", "session.id")
"""Session attributes, besides any whose name ends in ``session.id``."""
USERS = ("user.id", "enduser.id")
PROMPT_USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_USAGE = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CHOICES = "gen_ai.request.choice.count"
UNNAMED = "default"


@dataclass(frozen=True, slots=True)
class _Call:
    answered: Answered
    run: str
    user: str
    prompt_tokens: int
    counted: bool
    """True if the span reports its prompt tokens."""
    output_tokens: int
    samples: int


def read_otel(path: Path, *, defaults: Defaults = Defaults()) -> Trace:
    """Read a file of spans.

    Interaction ids are session or trace ids; call ids are span ids (prefixed with the trace's in a
    session of several traces); the app is the first call's service; users are read from ``user.id``
    or ``enduser.id``, or else from ``defaults``. Raises `TraceError` for what `read_spans` rejects,
    a file without a call, messages that are not JSON, usage that is not a count, and a call with
    neither text nor usage.
    """
    try:
        return _read(path, defaults)
    except RecursionError:
        raise TraceError(f"{path}: nested too deeply to be read") from None


def _read(path: Path, defaults: Defaults) -> Trace:
    spans = {span.key: span for span in read_spans(path)}
    calls = [
        call
        for span in _call_spans(spans)
        if (call := _call(span, _ancestors(span, spans))) is not None
    ]
    if not calls:
        raise TraceError(
            f"{path}: no span is an answered LLM call; one is that has {OPERATION} "
            f"{', '.join(OPERATIONS)}, or {INPUT}"
        )
    arrivals_ns: dict[str, int] = {}
    for span in spans.values():
        run = _run(span, _ancestors(span, spans))
        arrivals_ns[run] = min(arrivals_ns.get(run, span.start_ns), span.start_ns)
    first_ns = min(arrivals_ns.values())
    calls.sort(key=lambda call: (call.answered.span.start_ns, call.answered.span.end_ns))
    by_run: dict[str, list[_Call]] = {}
    for call in calls:
        by_run.setdefault(call.run, []).append(call)
    blocks = _blocks(calls)
    interactions = []
    for run, of_run in by_run.items():
        service = of_run[0].answered.span.service
        interactions.append(
            Interaction(
                interaction_id=run,
                tenant=defaults.tenant,
                app=service or UNNAMED,
                user=next((call.user for call in of_run if call.user), defaults.user),
                arrival_s=(arrivals_ns[run] - first_ns) / 1e9,
                calls=_trace_calls(of_run, arrivals_ns[run], spans, blocks),
                origin=str(path),
            )
        )
    return Trace(trace_name(path), BLOCK_TOKENS, ()).with_interactions(interactions)


def _ancestors(span: Span, spans: Mapping[SpanKey, Span]) -> list[Span]:
    """Return the ancestors in the file, nearest first."""
    ancestors = []
    while span.parent is not None and span.parent in spans:
        span = spans[span.parent]
        ancestors.append(span)
    return ancestors


def _call_spans(spans: Mapping[SpanKey, Span]) -> Iterator[Span]:
    candidates = [span for span in spans.values() if _is_call(span)]
    wrappers = {
        ancestor.key
        for span in candidates
        for ancestor in _ancestors(span, spans)
        if ancestor.start_ns <= span.start_ns and span.end_ns <= ancestor.end_ns
    }
    return (span for span in candidates if span.key not in wrappers)


def _is_call(span: Span) -> bool:
    operation = span.attributes.get(OPERATION)
    if operation is None:
        return span.attributes.get(INPUT) is not None
    return operation in OPERATIONS


def _run(span: Span, ancestors: Sequence[Span]) -> str:
    """Return the session id of the span or its nearest ancestor, or else its trace id."""
    for named in (span, *ancestors):
        others = sorted(name for name in named.attributes if name.endswith("session.id"))
        for name in (*SESSIONS, *others):
            if session := named.text(name):
                return session
    return span.trace_id


def _call(span: Span, ancestors: Sequence[Span]) -> _Call | None:
    """Return the call of a span; None if it failed without an answer."""
    prompt, output = read_prompt(span), read_output(span)
    prompt_count = _count(span, PROMPT_USAGE)
    output_count = _count(span, OUTPUT_USAGE)
    if output is None and output_count is None:
        if span.failed:
            return None
        raise span.error(f"needs {OUTPUT_TEXT} or {OUTPUT_USAGE[0]}; an error needs neither")
    if span.attributes.get(INPUT) is None and prompt_count is None:
        raise span.error(f"needs {INPUT} or {PROMPT_USAGE[0]}")
    prompt, output = prompt or (), output or ()
    samples = _count(span, (CHOICES,), least=1) or 1
    generated = estimated_tokens(output) if output_count is None else output_count
    named = (span, *ancestors)
    agent = next((name for s in named if (name := s.text("gen_ai.agent.name"))), "")
    lineage = [s.key for s in reversed(named)]
    outermost = named[-1].parent
    if outermost is not None:  # not in the file, yet the same for all its children
        lineage.insert(0, outermost)
    return _Call(
        answered=Answered(
            span=span,
            agent=agent or span.service or span.name or UNNAMED,
            prompt=prompt,
            output=output,
            lineage=tuple(lineage),
        ),
        run=_run(span, ancestors),
        user=next((user for s in named for name in USERS if (user := s.text(name))), ""),
        prompt_tokens=max(estimated_tokens(prompt) if prompt_count is None else prompt_count, 1),
        counted=prompt_count is not None,
        output_tokens=max(-(-generated // samples), 1),
        samples=samples,
    )


def _count(span: Span, names: Sequence[str], least: int = 0) -> int | None:
    for name in names:
        value = span.attributes.get(name)
        if value is None:
            continue
        if type(value) is not int or value < least:
            raise span.error(f"{name} must be an integer of at least {least}, got {shown(value)}")
        return value
    return None


def _blocks(calls: Sequence[_Call]) -> dict[SpanKey, tuple[tuple[int, int], ...]]:
    """Return the runs of block ids of each prompt, by its span."""
    measured = [call for call in calls if call.counted and call.answered.prompt]
    tokens = sum(call.prompt_tokens for call in measured)
    characters = sum(_characters(call.answered.prompt) for call in measured)
    per_token = characters / tokens if characters else CHARACTERS_PER_TOKEN
    size = max(round(BLOCK_TOKENS * per_token), 1)
    ids = BlockIds()
    return {
        call.answered.span.key: block_runs(
            ids, call.answered.prompt, size, call.prompt_tokens // BLOCK_TOKENS
        )
        for call in calls
    }


def _characters(messages: Messages) -> int:
    return sum(message.characters for message in messages)


def _trace_calls(
    calls: Sequence[_Call],
    arrival_ns: int,
    spans: Mapping[SpanKey, Span],
    blocks: Mapping[SpanKey, tuple[tuple[int, int], ...]],
) -> tuple[TraceCall, ...]:
    answered = [call.answered for call in calls]
    several = len({one.span.trace_id for one in answered}) > 1
    names = [
        f"{one.span.trace_id}/{one.span.span_id}" if several else one.span.span_id
        for one in answered
    ]
    trace_calls = []
    for index, needed in enumerate(direct_dependencies(answered, spans)):
        call, span = calls[index], answered[index].span
        ready_ns = max((answered[i].span.end_ns for i in needed), default=arrival_ns)
        system_tokens = min(estimated_tokens(answered[index].prompt, "system"), call.prompt_tokens)
        trace_calls.append(
            TraceCall(
                call_id=names[index],
                agent=answered[index].agent,
                deps=tuple(names[i] for i in needed),
                gap_s=(span.start_ns - ready_ns) / 1e9,
                input_tokens=call.prompt_tokens - system_tokens,
                system_tokens=system_tokens,
                output_tokens=call.output_tokens,
                samples=call.samples,
                blocks=blocks[span.key],
            )
        )
    return tuple(trace_calls)
