"""Synthetic documents of OpenTelemetry spans: times in seconds of a day, messages as pairs."""

import json


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def at(second):
    return f"2026-05-04T10:00:{second:09.6f}"


def span(span_id, start, end, **changes):
    """Return a span without an operation; ``attributes`` and other fields are parameters."""
    return {
        "trace_id": "t",
        "span_id": span_id,
        "parent_span_id": None,
        "name": "step",
        "start_time": at(start),
        "end_time": at(end),
        "attributes": {},
        **changes,
    }


def chat(span_id, start, end, messages=None, answer=None, attributes=None, **changes):
    """Return an LLM call; messages and answer are omitted if None."""
    given = {"gen_ai.operation.name": "chat", "gen_ai.request.max_tokens": 4000}
    if messages is not None:
        given["gen_ai.input.messages"] = json.dumps(messages)
    if answer is not None:
        given["gen_ai.output.text"] = answer
    return span(span_id, start, end, attributes={**given, **(attributes or {})}, **changes)


def write_spans(path, *spans, indent=2):
    path.write_text(json.dumps({"trace_id": "t", "spans": list(spans)}, indent=indent))
    return path


def exported(*spans, service="shop"):
    """Return the spans in OTLP export form: camel case, nanoseconds as text, attribute lists."""

    def value(plain):
        if isinstance(plain, bool):
            return {"boolValue": plain}
        if isinstance(plain, int):
            return {"intValue": str(plain)}
        if isinstance(plain, list):
            return {"arrayValue": {"values": [value(item) for item in plain]}}
        if isinstance(plain, dict):
            return {"kvlistValue": {"values": pairs(plain)}}
        return {"stringValue": plain}

    def pairs(attributes):
        return [{"key": key, "value": value(plain)} for key, plain in attributes.items()]

    def nanoseconds(time):
        return str(round(float(time[-9:]) * 1e9) + 1_777_888_800_000_000_000)

    records = [
        {
            "traceId": one["trace_id"],
            "spanId": one["span_id"],
            "parentSpanId": one["parent_span_id"] or "",
            "name": one["name"],
            "startTimeUnixNano": nanoseconds(one["start_time"]),
            "endTimeUnixNano": nanoseconds(one["end_time"]),
            "attributes": pairs(one["attributes"]),
            "status": one.get("status", {}),
        }
        for one in spans
    ]
    resource = {"attributes": pairs({"service.name": service})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": records}]}]}
