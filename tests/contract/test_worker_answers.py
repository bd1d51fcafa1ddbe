"""Every answer of a worker has one meaning for the client, the ledger and the retries.

Each line of the tables is one answer. It is sent by a worker of its kind, in every protocol that the
line names, through a whole server; all calls are made once, before the first test.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle

import pytest
from answering_worker import MODELS, AnsweringWorkers, events, whole
from gateway_server import ThreadServer
from processes import eventually

from fairserve.platform.serving.batches import execution

ENDED = ("completed", "failed", "cancelled", "expired")


# --- what is expected ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """``ended`` is how the client sees the end: complete, incomplete, or an error."""

    status: int
    ended: str
    text: str = ""
    tools: tuple = ()
    outcome: str = "completed"
    attempts: int = 1
    says: str = ""
    """Part of the error's message."""
    output_tokens: int | None = None


def good(text="", *tools, **more):
    return Expected(200, "complete", text, tools, **more)


def short(text, **more):
    return Expected(200, "incomplete", text, **more)


def retried(text):
    return good(text, attempts=2)


def failed(says="", status=502, attempts=2):
    return Expected(status, "error", outcome="failed", attempts=attempts, says=says)


def once(says="", status=502):
    """A whole answer is not retried: the worker has computed it."""
    return failed(says, status, attempts=1)


def cut(text, *tools, says="", **more):
    """A stream that breaks off after its head was sent."""
    return Expected(200, "error", text, tools, outcome="failed", says=says, **more)


# --- answers ------------------------------------------------------------------------------------------

USAGE = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}
A, B = '{"city":"Rome"}', '{"zone":"CET"}'
CALLS = (("weather", A), ("clock", B))
ONE = CALLS[:1]
HALF = b'{"choices":[{"index":0,"delta":{"content":"a\\ud83d"},"finish_reason":null}]}'
OTHER = b'{"choices":[{"index":0,"delta":{"content":"\\ude42b"},"finish_reason":null}]}'
BAD = b'{"choices":[{"index":0,"delta":{"content":"a\xf0\x9f"},"finish_reason":null}]}'


def chunk(choices, **more):
    return {"id": "w", "object": "chat.completion.chunk", "created": 1, "choices": choices, **more}


def choice(delta=None, finish=None, **more):
    return {"index": 0, "delta": delta, "finish_reason": finish, **more}


def say(text, **more):
    return chunk([choice({"content": text}, **more)])


def tools(*parts):
    return chunk([choice({"tool_calls": list(parts)})])


def part(index="absent", call_id=None, name=None, arguments=None):
    function = {"name": name, "arguments": arguments}
    found = {"function": {key: value for key, value in function.items() if value is not None}}
    found |= {} if index == "absent" else {"index": index}
    return found | ({"id": call_id, "type": "function"} if call_id else {})


def end(reason="stop", usage=USAGE):
    return chunk([choice({}, reason)], usage=usage)


def error(message, **fields):
    return {"error": {"message": message, **fields}}


ROLE = chunk([choice({"role": "assistant", "content": ""})])
OK = events(ROLE, say("fine"), end())
TOOL_END = end("tool_calls")


def message(content="one two", finish="stop", **more):
    answer = {"role": "assistant", "content": content, **more}
    return {"index": 0, "message": answer, "finish_reason": finish}


def answer(*choices, **more):
    return whole({"id": "w", "choices": list(choices), "usage": USAGE, **more})


def content(raw):
    return whole(b'{"choices":[{"message":{"content":"%s"},"finish_reason":"stop"}]}' % raw)


def text(value="one two", finish="stop", **more):
    return {"index": 0, "text": value, "finish_reason": finish, "logprobs": None, **more}


def called(*calls):
    return message(None, "tool_calls", tool_calls=list(calls))


def function(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def vector(index, value):
    return {"index": index, "object": "embedding", "embedding": value}


def vectors(*entries):
    return whole({"object": "list", "data": list(entries), "usage": {"prompt_tokens": 4}})


def ranks(*entries):
    return whole({"results": list(entries), "usage": {"total_tokens": 4}})


def rank(index, score):
    return {"index": index, "relevance_score": score}


# --- the tables ---------------------------------------------------------------------------------------

CHAT = ("chat", "messages", "responses")
ALL = (*CHAT, "chat openai", "chat embedded")
ONE_OF_CHAT = ("in turn",)
"""One of ``CHAT``, in turn: these answers end where they arrive, before a protocol is theirs."""

STREAMS = [
    # name, ways, answers, expected
    ("plain", ALL, [OK], good("fine", output_tokens=2)),
    ("length", ALL, [events(say("one"), end("length"))], short("one")),
    ("filtered", CHAT, [events(say("one"), end("content_filter"))], short("one")),
    ("reasoning", CHAT, [events(chunk([choice({"reasoning": "h"})]), say("x"), end())], good("x")),
    ("index-null", CHAT, [events(say("x", index=None), end())], good("x")),
    ("delta-absent", CHAT, [events(say("x"), chunk([{"finish_reason": "stop"}]))], good("x")),
    ("choices-null", CHAT, [events(chunk(None), say("x"), end())], good("x")),
    # Shapes.
    ("null-choice", ALL, [events(chunk([None]))], failed("choices[]")),
    ("null-then-good", ALL, [events(chunk([None])), OK], retried("fine")),
    ("choices-object", ONE_OF_CHAT, [events(chunk({"0": {}}))], failed("choices")),
    ("choices-text", ONE_OF_CHAT, [events(chunk("x"))], failed("choices")),
    ("choices-false", ONE_OF_CHAT, [events(chunk(False))], failed("choices")),
    ("index-list", ONE_OF_CHAT, [events(say("x", index=[1]), end())], failed("index")),
    ("index-text", ONE_OF_CHAT, [events(say("x", index="0"), end())], failed("index")),
    ("index-true", ONE_OF_CHAT, [events(say("x", index=True), end())], failed("index")),
    ("index-beyond", ONE_OF_CHAT, [events(say("x", index=1), end())], failed("index 1")),
    ("index-negative", ONE_OF_CHAT, [events(say("x", index=-1), end())], failed("index -1")),
    ("delta-text", ONE_OF_CHAT, [events(chunk([choice("hello")]))], failed("delta")),
    ("delta-list", ONE_OF_CHAT, [events(chunk([choice([])]))], failed("delta")),
    ("delta-late", ONE_OF_CHAT, [events(say("x"), chunk([choice("y")]))], cut("x", says="delta")),
    ("content-list", ONE_OF_CHAT, [events(say(["x"]), end())], failed("content")),
    ("content-number", ONE_OF_CHAT, [events(say(5), end())], failed("content")),
    (
        "reasoning-object",
        ONE_OF_CHAT,
        [events(chunk([choice({"reasoning": {}})]))],
        failed("reasoning"),
    ),
    ("refusal-list", ONE_OF_CHAT, [events(chunk([choice({"refusal": [1]})]))], failed("refusal")),
    ("no-delta", ONE_OF_CHAT, [events(chunk([message("x")]))], failed("without delta")),
    (
        "function-call",
        ONE_OF_CHAT,
        [events(chunk([choice({"function_call": {"a": 1}})]))],
        failed(),
    ),
    (
        "function-call-empty",
        ONE_OF_CHAT,
        [events(chunk([choice({"content": "x", "function_call": {"name": ""}})]), end())],
        good("x"),
    ),
    ("logprobs-text", ONE_OF_CHAT, [events(say("x", logprobs="x"), end())], failed("logprobs")),
    (
        "token-null",
        ONE_OF_CHAT,
        [events(say("x", logprobs={"content": [None]}))],
        failed("logprobs"),
    ),
    ("event-list", ONE_OF_CHAT, [events([1])], failed("not a JSON object")),
    ("event-text", ONE_OF_CHAT, [events(b"<html>")], failed("not JSON")),
    (
        "deep",
        ONE_OF_CHAT,
        [events(say("x"), b'{"choices":' + b"[" * 300 + b"]" * 300 + b"}")],
        cut("x"),
    ),
    (
        "deeper",
        ONE_OF_CHAT,
        [events(say("x"), b'{"x":' + b"[" * 9000 + b"]" * 9000 + b"}")],
        cut("x"),
    ),
    # Tool calls.
    (
        "tools",
        ALL,
        [
            events(
                tools(part(0, "c1", "weather", "")),
                tools(part(0, arguments=A[:5])),
                tools(part(0, arguments=A[5:])),
                tools(part(1, "c2", "clock", B)),
                TOOL_END,
            )
        ],
        good("", *CALLS),
    ),
    (
        "tools-without-index",
        ALL,
        [
            events(
                tools(part(None, "c1", "weather", "")),
                tools(part("absent", arguments=A)),
                tools(part("absent", "c2", "clock", B)),
                TOOL_END,
            )
        ],
        good("", *CALLS),
    ),
    (
        "tools-by-id",
        CHAT,
        [
            events(
                tools(part("absent", "c1", "weather", A[:4])),
                tools(part("absent", "c1", arguments=A[4:]), part("absent", "c2", "clock", "")),
                tools(part("absent", "c2", arguments=B)),
                TOOL_END,
            )
        ],
        good("", *CALLS),
    ),
    (
        "tools-by-name",
        CHAT,
        [
            events(
                tools(part("absent", None, "weather", A)),
                tools(part("absent", None, "clock", B)),
                TOOL_END,
            )
        ],
        good("", *CALLS),
    ),
    (
        "tools-all-zero",
        CHAT,
        [events(tools(part(0, "c1", "weather", A)), tools(part(0, "c2", "clock", B)), TOOL_END)],
        good("", *CALLS),
    ),
    (
        "tools-all-zero-no-id",
        CHAT,
        [events(tools(part(0, None, "weather", A)), tools(part(0, None, "weather", A)), TOOL_END)],
        good("", *ONE, *ONE),
    ),
    (
        "tools-one-chunk",
        CHAT,
        [events(tools(part(0, "c1", "weather", A), part(1, "c2", "clock", B)), TOOL_END)],
        good("", *CALLS),
    ),
    (
        "tools-name-repeated",
        CHAT,
        [
            events(
                tools(part(0, "c1", "weather", A[:6])),
                tools(part(0, "c1", "weather", A[6:])),
                TOOL_END,
            )
        ],
        good("", *ONE),
    ),
    (
        "tools-name-later",
        CHAT,
        [
            events(
                tools(part(0, "c1")),
                tools(part(0, None, "weather", A[:6])),
                tools(part(0, "", "", A[6:])),
                TOOL_END,
            )
        ],
        good("", *ONE),
    ),
    (
        "tools-nulls",
        CHAT,
        [
            events(
                tools({"index": 0, "id": "c1", "function": {"name": "weather", "arguments": None}}),
                tools({"index": 0, "id": None, "function": {"name": None, "arguments": A}}),
                TOOL_END,
            )
        ],
        good("", *ONE),
    ),
    (
        "tools-interleaved",
        ("chat",),
        [
            events(
                tools(part(0, "c1", "weather", ""), part(1, "c2", "clock", "")),
                tools(part(0, arguments=A)),
                tools(part(1, arguments=B)),
                TOOL_END,
            )
        ],
        good("", *CALLS),
    ),
    (
        "tools-mixed",
        ("messages", "responses"),
        [
            events(
                tools(part(0, "c1", "weather", "{")),
                tools(part(1, "c2", "clock", B)),
                tools(part(0, arguments="}")),
                TOOL_END,
            )
        ],
        cut("", ("weather", "{"), CALLS[1], says="mixed"),
    ),
    ("tools-text", ONE_OF_CHAT, [events(tools("x"))], failed("tool_calls")),
    ("tools-null", ONE_OF_CHAT, [events(tools(None))], failed("tool_calls")),
    (
        "tools-object",
        ONE_OF_CHAT,
        [events(chunk([choice({"tool_calls": {"a": 1}})]))],
        failed("tool_c"),
    ),
    ("tools-index", ONE_OF_CHAT, [events(tools(part("0", "c", "weather", A)))], failed("index")),
    (
        "tools-function",
        ONE_OF_CHAT,
        [events(tools({"index": 0, "function": "f"}))],
        failed("function"),
    ),
    (
        "tools-arguments",
        ONE_OF_CHAT,
        [events(tools(part(0, "c", "weather", {})))],
        failed("arguments"),
    ),
    ("tools-id", ONE_OF_CHAT, [events(tools(part(0, 7, "weather", A)))], failed("id")),
    (
        "tools-no-name",
        ONE_OF_CHAT,
        [events(tools(part(0, "c", None, A)), TOOL_END)],
        failed("name"),
    ),
    ("tools-orphan", ONE_OF_CHAT, [events(tools(part(arguments=A)))], failed("unknown")),
    (
        "tools-ambiguous",
        CHAT,
        [
            events(
                tools(part("absent", "c1", "weather", ""), part("absent", "c2", "clock", "")),
                tools(part(arguments=A)),
            )
        ],
        cut("", ("weather", ""), ("clock", ""), says="unknown"),
    ),
    # Ends.
    ("abort", ALL, [events(say("one"), end("abort"))], cut("one", says="'abort'")),
    ("error-finish", CHAT, [events(say("one"), end("error"))], cut("one", says="'error'")),
    ("empty-finish", CHAT, [events(say("one"), end(""))], cut("one")),
    (
        "empty-finishes",
        ALL,
        [events(say("o", finish=""), say("ne", finish=""), end())],
        good("one"),
    ),
    ("eos-token", CHAT, [events(say("one"), end("eos_token"))], good("one")),
    ("odd-finish", CHAT, [events(say("one"), end(7))], cut("one", says="finish_reason int")),
    ("abort-first", ALL, [events(ROLE, end("abort")), OK], retried("fine")),
    ("no-end", ALL, [events(say("one"))], cut("one")),
    ("no-done", ("chat", "messages"), [events(say("one"), end(), done=False)], cut("one")),
    ("no-done-plain", ("chat openai",), [events(say("one"), end(), done=False)], good("one")),
    ("no-end-plain", ("chat openai",), [events(say("one"), done=False)], cut("one")),
    (
        "no-line-end-plain",
        ("chat openai",),
        [whole(b'data: {"choices":[{"text":"","delta":{"content":"x"},"finish_reason":"stop"}]}')],
        good("x"),
    ),
    ("breaks", CHAT, [events(say("one"), done=False, breaks=True)], cut("one")),
    ("breaks-first", CHAT, [events(done=False, breaks=True), OK], retried("fine")),
    # Errors after status 200.
    ("error-event", ALL, [events(error("engine died", code=500))], failed("engine died")),
    ("error-text", CHAT, [events({"error": "engine died"})], failed("engine died")),
    ("error-bare", CHAT, [events({"object": "error", "message": "died"})], failed("died")),
    ("error-odd", CHAT, [events({"error": {"message": [1]}})], failed("without a message")),
    ("error-late", ALL, [events(say("one"), error("see http://10.1.2.3/x"))], cut("one", says="[")),
    (
        "error-400",
        ALL,
        [events(error("bad quota", type="BadRequestError"))],
        once("bad quota", 400),
    ),
    ("error-422", CHAT, [events(error("no", code=422))], once("no", 422)),
    (
        "error-400-late",
        CHAT,
        [events(say("one"), error("no", code=400))],
        cut("one", says="no", output_tokens=1),
    ),
    ("error-key", CHAT, [events(error("our key", code="invalid_api_key"))], failed(status=503)),
    ("error-busy", CHAT, [events(error("later", code=429)), OK], retried("fine")),
    ("error-empty", CHAT, [events({"error": {}})], failed(status=503)),
    # One object, although a stream was requested.
    ("object", ALL, [answer(message("fine"))], good("fine")),
    (
        "object-tools",
        CHAT,
        [answer(called(function(*CALLS[0]), function(*CALLS[1])))],
        good("", *CALLS),
    ),
    ("object-abort", CHAT, [answer(message(finish="abort"))], failed("'abort'")),
    ("object-error", CHAT, [whole(error("engine died"))], failed("engine died")),
    ("object-400", CHAT, [whole(error("no", type="BadRequestError"))], once("no", 400)),
    # Characters.
    ("half-emoji", ALL, [events(HALF, OTHER, end())], good("a\ufffd\ufffdb")),
    ("bad-byte", ALL, [events(BAD, say("b"), end())], good("a\ufffdb")),
    ("escapes", CHAT, [events(say('\\ud83d "\x00\u2028 \U0001f642'), end())], good(None)),
]

WHOLES = [
    ("whole", (*ALL, "batch"), [answer(message())], good("one two", output_tokens=2)),
    ("whole-length", ONE_OF_CHAT, [answer(message(finish="length"))], short("one two")),
    (
        "whole-tools",
        ALL,
        [answer(called(function(*CALLS[0]), function(*CALLS[1])))],
        good("", *CALLS),
    ),
    (
        "whole-null",
        ONE_OF_CHAT,
        [answer(called(function("weather", None)))],
        good("", ("weather", "")),
    ),
    ("whole-choices-none", (*ALL, "batch"), [answer()], once("without choices")),
    ("whole-choices-null", ONE_OF_CHAT, [answer(None)], once("choices[]")),
    ("whole-choices-object", ONE_OF_CHAT, [whole({"choices": {"0": {}}})], once("choices")),
    ("whole-choices-two", ONE_OF_CHAT, [answer(message(), message())], once("index 0")),
    (
        "whole-message-null",
        (*ALL, "batch"),
        [answer(message() | {"message": None})],
        once("message"),
    ),
    ("whole-message-text", ONE_OF_CHAT, [answer(message() | {"message": "x"})], once("message")),
    ("whole-content-list", ONE_OF_CHAT, [answer(message(["x"]))], once("content")),
    ("whole-tools-text", ONE_OF_CHAT, [answer(called("x"))], once("tool_calls")),
    ("whole-tools-object", ONE_OF_CHAT, [answer(message(tool_calls={}))], once("tool_calls")),
    ("whole-tools-no-name", ONE_OF_CHAT, [answer(called(function("", A)))], once("name")),
    ("whole-tools-arguments", ONE_OF_CHAT, [answer(called(function("f", {})))], once("arguments")),
    ("whole-abort", (*ALL, "batch"), [answer(message(finish="abort"))], once("'abort'")),
    (
        "whole-no-finish",
        ONE_OF_CHAT,
        [answer(message(finish=None))],
        once("finish_reason NoneType"),
    ),
    ("whole-eos", ONE_OF_CHAT, [answer(message(finish="stop_sequence"))], good("one two")),
    ("whole-list", ONE_OF_CHAT, [whole([1])], once("not a JSON object")),
    ("whole-html", (*CHAT, "batch"), [whole(b"<html>")], once("not JSON")),
    ("whole-empty", ONE_OF_CHAT, [whole(b"")], once("not JSON")),
    ("whole-error", (*ALL, "batch"), [whole(error("engine died"))], once("engine died")),
    (
        "whole-error-bare",
        ONE_OF_CHAT,
        [whole({"object": "error", "message": "died"})],
        once("died"),
    ),
    ("whole-error-400", (*ALL, "batch"), [whole(error("api_key", code=400))], once("api_key", 400)),
    ("whole-half", ONE_OF_CHAT, [content(b"a\\ud83d")], good("a\ufffd")),
    ("whole-byte", ONE_OF_CHAT, [content(b"a\xff")], good("a\ufffd")),
    # Statuses other than 200, whatever the text.
    ("status-400", (*ALL, "batch"), [whole(error("no api_key here"), 400)], once("api_key", 400)),
    ("status-400-quota", ALL, [whole(error("a field quota, billing"), 400)], once("quota", 400)),
    (
        "status-422",
        ONE_OF_CHAT,
        [whole(error("tool authenticate_user"), 422)],
        once("tool auth", 422),
    ),
    (
        "status-400-key",
        ONE_OF_CHAT,
        [whole(error("x", code="invalid_api_key"), 400)],
        failed(status=503),
    ),
    ("status-401", ALL, [whole(error("x"), 401)], failed(status=503, attempts=3)),
    ("status-500", (*CHAT, "batch"), [whole(error("quota of the GPU"), 500)], failed("quota of")),
    ("status-503", ONE_OF_CHAT, [whole(error("x"), 503)], failed(status=503, attempts=3)),
    ("status-201", ONE_OF_CHAT, [whole({"choices": []}, 201)], failed("status 201")),
    (
        "status-307",
        ONE_OF_CHAT,
        [whole(b"", 307, location="http://127.0.0.1:1/x")],
        failed("status 307"),
    ),
    (
        "status-odd-error",
        CHAT,
        [whole(error("x", param=["a"], type=7, code={}), 400)],
        once("x", 400),
    ),
]

LONG = "abcd " * 20
"""100 bytes, 25 tokens by the estimate; the calls may generate 50."""
NONE_OUT = {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}
ODD_USAGES = {
    "absent": (ALL, None),
    "empty": (("messages",), {}),
    "text": (("responses",), "oops"),
    "list": (("chat",), [1]),
    "nothing": (ALL, NONE_OUT),
    "floats": (("messages",), {"prompt_tokens": 12.0, "completion_tokens": 30.0}),
    "texts": (("responses",), {"prompt_tokens": "12", "completion_tokens": "30"}),
    "true": (("chat",), {"prompt_tokens": True, "completion_tokens": True}),
    "negative": (("messages",), {"prompt_tokens": -12, "completion_tokens": -30}),
    "over": (ALL, {"prompt_tokens": 12, "completion_tokens": 51}),
    "huge": (ALL, {"prompt_tokens": 2**62, "completion_tokens": 2**62, "total_tokens": 2**63}),
    "beyond": (("responses",), {"prompt_tokens": 10**30, "completion_tokens": 10**30}),
}
"""Protocols in which a call is made, and what its worker reports."""
USAGE_STREAMS = [
    *(
        (f"usage-{name}", ways, [events(say(LONG), end(usage=odd))], good(LONG, output_tokens=25))
        for name, (ways, odd) in ODD_USAGES.items()
    ),
    (
        "usage-placeholder",
        ALL,
        [events(ROLE | {"usage": NONE_OUT}, say(LONG), end(usage=None))],
        good(LONG, output_tokens=25),
    ),
    (
        "usage-stops",
        CHAT,
        [events(say("a") | {"usage": USAGE}, say(LONG), end(usage=None))],
        good("a" + LONG, output_tokens=27),
    ),
    (
        "usage-runs-on",
        ALL,
        [events(ROLE, *[say("word ")] * 300, end())],
        cut("word " * 228, says="longer than the 50 tokens"),
    ),
    ("usage-empty-chunks", ("chat",), [events(*[ROLE] * 6_000, end())], failed("longer than")),
]
USAGE_WHOLES = [
    *(
        (
            f"whole-usage-{name}",
            (*ways, "batch"),
            [answer(message(LONG), usage=odd)],
            good(LONG, output_tokens=25),
        )
        for name, (ways, odd) in ODD_USAGES.items()
    ),
    (
        "whole-usage-tools",
        CHAT,
        [answer(called(function("weather", A)), usage=None)],
        good("", *ONE, output_tokens=6),
    ),
    ("whole-usage-long", CHAT, [answer(message("x" * 20_000))], once("longer than the 50 tokens")),
]
TEXT_USAGES = [
    (f"text-usage-{name}", ("text",), [answer(text(LONG), usage=odd)], good(LONG, output_tokens=25))
    for name, (_, odd) in ODD_USAGES.items()
]

TEXT_STREAMS = [
    ("text", ("text",), [events(chunk([text("one", None)]), chunk([text("")]))], good("one")),
    (
        "text-empty-finishes",
        ("text", "text openai"),
        [events(chunk([text("one", "")]), chunk([text("")]))],
        good("one"),
    ),
    ("text-null", ("text",), [events(chunk([None]))], failed("choices[]")),
    ("text-number", ("text",), [events(chunk([text(5)]))], failed("text")),
    ("text-chat", ("text",), [events(say("x"), end())], failed("without text")),
    (
        "text-abort",
        ("text",),
        [events(chunk([text("x", None)]), chunk([text("", "abort")]))],
        cut("x"),
    ),
]

TEXT_WHOLES = [
    ("text-whole", ("text",), [answer(text())], good("one two")),
    ("text-whole-null", ("text",), [answer(text(None))], once("text")),
    ("text-whole-chat", ("text",), [answer(message())], once("text")),
    ("text-whole-abort", ("text",), [answer(text(finish="abort"))], once("'abort'")),
]

POOLING = [
    ("vectors", ("embeddings",), [vectors(vector(0, [1.0]), vector(1, "AACAPw=="))], good("2")),
    ("vectors-null", ("embeddings",), [vectors(None, None)], failed("data[]")),
    ("vectors-text", ("embeddings",), [whole({"data": "x"})], failed("data")),
    ("vectors-few", ("embeddings",), [vectors(vector(0, [1.0]))], failed("1 data, not 2")),
    ("vectors-twice", ("embeddings",), [vectors(vector(0, [1]), vector(0, [1]))], failed("index")),
    ("vectors-empty", ("embeddings",), [vectors(vector(0, []), vector(1, None))], failed("embed")),
    ("vectors-error", ("embeddings",), [whole(error("died"))], failed("died")),
    ("ranks", ("rerank",), [ranks(rank(1, 0.5), rank(0, 0.25))], good("2")),
    ("ranks-null", ("rerank",), [ranks(None, None)], failed("results[]")),
    ("ranks-beyond", ("rerank",), [ranks(rank(0, 1), rank(7, 1))], failed("index")),
    ("ranks-text", ("rerank",), [ranks(rank(0, "high"), rank(1, 1))], failed("relevance_score")),
]


@dataclass(frozen=True)
class Case:
    name: str
    way: str
    kind: str
    streams: bool
    expected: Expected
    answers: list = field(hash=False)

    @property
    def id(self):
        way = self.way if self.kind in ("vllm", "embed") else f"{self.way}-{self.kind}"
        return f"{self.name}-{way}"


def cases(table, *, streams=False):
    in_turn = cycle(CHAT)
    for name, ways, answers, expected in table:
        for way in ways if ways is not ONE_OF_CHAT else (next(in_turn),):
            protocol, _, kind = way.partition(" ")
            kind = kind or ("embed" if protocol in ("embeddings", "rerank") else "vllm")
            yield Case(name, protocol, kind, streams, expected, answers)


CASES = [
    *cases(STREAMS, streams=True),
    *cases(WHOLES),
    *cases(USAGE_STREAMS, streams=True),
    *cases(USAGE_WHOLES),
    *cases(TEXT_USAGES),
    *cases(TEXT_STREAMS, streams=True),
    *cases(TEXT_WHOLES),
    *cases(POOLING),
]


# --- the calls ----------------------------------------------------------------------------------------


@dataclass
class Shown:
    """A call as its client saw it."""

    status: int
    ended: str = "nothing"
    text: str = ""
    tools: list = field(default_factory=list)
    says: str = ""
    call_id: str = ""


CHAT_PATH = "/v1/chat/completions"
FUNCTIONS = ("weather", "clock")
INCOMPLETE = ("length", "content_filter", "max_tokens", "refusal", "incomplete")


def body_of(case):
    """Return path and body of a case's call."""
    said, schema = f"case:{case.id}", {"type": "object"}
    body = {"model": MODELS[case.kind]}
    functions = [{"name": name, "parameters": schema} for name in FUNCTIONS]
    if case.way in ("chat", "batch", "messages"):
        body |= {"max_tokens": 50, "messages": [{"role": "user", "content": said}]}
    if case.streams:
        body["stream"] = True
    match case.way:
        case "messages":
            named = [{"name": name, "input_schema": schema} for name in FUNCTIONS]
            return "/v1/messages", body | {"tools": named}
        case "responses":
            named = [{"type": "function", **each} for each in functions]
            return "/v1/responses", body | {"max_output_tokens": 50, "input": said, "tools": named}
        case "text":
            return "/v1/completions", body | {"max_tokens": 50, "prompt": said}
        case "embeddings":
            return "/v1/embeddings", body | {"input": [said, "b"]}
        case "rerank":
            return "/v1/rerank", body | {"query": said, "documents": ["a", "b"]}
    if case.kind != "embedded":  # which honours no tools
        body["tools"] = [{"type": "function", "function": each} for each in functions]
    return CHAT_PATH, body


def made(server, case):
    """Make the call of a case."""
    path, body = body_of(case)
    response = server.post(path, body)
    shown = Shown(response.status_code, call_id=response.headers.get("x-request-id", ""))
    try:
        if response.headers["content-type"].startswith("text/event-stream"):
            for line in response.text.split("\n"):
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    read_event(shown, "[DONE]" if data == "[DONE]" else json.loads(data))
        else:
            read_object(shown, response.json())
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        shown.ended = f"unreadable: {error!r}"
    return shown


def read_event(shown, event):
    """Read an event of any protocol."""
    if event == "[DONE]":
        shown.ended = "complete" if shown.ended == "nothing" else shown.ended
        return
    if event.get("error"):
        shown.ended, shown.says = "error", event["error"]["message"]
    for each in event.get("choices") or ():
        read_choice(shown, each, each.get("delta") or {})
    kind = event.get("type", "")
    match kind:
        case "content_block_start" if event["content_block"]["type"] == "tool_use":
            shown.tools.append([event["content_block"]["name"], ""])
        case "content_block_delta":
            shown.text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                shown.tools[-1][1] += event["delta"]["partial_json"]
        case "message_delta":
            incomplete = event["delta"]["stop_reason"] in INCOMPLETE
            shown.ended = "incomplete" if incomplete else "complete"
        case "response.output_text.delta":
            shown.text += event["delta"]
        case "response.output_item.added" if event["item"]["type"] == "function_call":
            shown.tools.append([event["item"]["name"], ""])
        case "response.function_call_arguments.delta":
            shown.tools[-1][1] += event["delta"]
        case "response.completed" | "response.incomplete":
            shown.ended = kind.removeprefix("response.").replace("completed", "complete")
        case "response.failed":
            shown.ended, shown.says = "error", event["response"]["error"]["message"]


def read_choice(shown, choice, fields):
    shown.text += fields.get("content") or choice.get("text") or ""
    for number, call in enumerate(fields.get("tool_calls") or ()):
        index = call.get("index", number)
        while len(shown.tools) <= index:
            shown.tools.append(["", ""])
        shown.tools[index][0] += call["function"].get("name") or ""
        shown.tools[index][1] += call["function"].get("arguments") or ""
    if choice.get("finish_reason") in INCOMPLETE:
        shown.ended = "incomplete"


def read_object(shown, body):
    """Read a whole answer of any protocol."""
    if body.get("error"):
        shown.ended, shown.says = "error", body["error"]["message"]
        return
    shown.ended = "complete"
    for each in body.get("choices") or ():
        read_choice(shown, each, each.get("message") or {})
    for block in body.get("content") or ():
        shown.text += block.get("text", "")
        if block["type"] == "tool_use":
            plain = json.dumps(block["input"], separators=(",", ":")) if block["input"] else ""
            shown.tools.append([block["name"], plain])
    for item in body.get("output") or ():
        if item["type"] == "message":
            shown.text += "".join(piece["text"] for piece in item["content"])
        if item["type"] == "function_call":
            shown.tools.append([item["name"], item["arguments"]])
    if body.get("stop_reason") in INCOMPLETE or body.get("status") in INCOMPLETE:
        shown.ended = "incomplete"
    entries = body.get("data") or body.get("results") or ()
    shown.text += str(len(entries)) if entries else ""


def batched(server, lines):
    """Run a batch with a line for each case; return what its files show, by case."""

    def line(case):
        path, body = body_of(case)
        return {"custom_id": case.id, "method": "POST", "url": path, "body": body}

    client = server.openai()
    data = "\n".join(json.dumps(line(case)) for case in lines).encode()
    file = client.files.create(file=("b.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT_PATH, completion_window="24h"
    )
    batch = eventually(
        lambda: (found := client.batches.retrieve(batch.id)).status in ENDED and found
    )
    shown = {}
    for name in filter(None, (batch.output_file_id, batch.error_file_id)):
        for raw in client.files.content(name).text.splitlines():
            entry = json.loads(raw)
            shown[entry["custom_id"]] = found = Shown(entry["response"]["status_code"])
            read_object(found, entry["response"]["body"])
    return shown


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    workers = AnsweringWorkers({case.id: case.answers for case in CASES})
    folder = tmp_path_factory.mktemp("answers")
    fleet = folder / "fleet.json"
    fleet.write_text(json.dumps({"workers": workers.entries()}))
    server = ThreadServer(folder / "data", "--fleet-file", str(fleet))
    server.workers = workers
    yield server
    server.close()
    workers.close()


@pytest.fixture(scope="module")
def shown(server):
    """Make all calls; return a function that returns what a client saw of a case."""
    single = [case for case in CASES if case.way != "batch"]
    lines = [case for case in CASES if case.way == "batch"]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(execution.BACKOFF.__class__, "pause_s", lambda *_: 0.0)
        batch = pool.submit(batched, server, lines)
        found = {case.id: pool.submit(made, server, case) for case in single}
        batch.exception()
    return lambda case: batch.result()[case.id] if case.way == "batch" else found[case.id].result()


@pytest.fixture(scope="module")
def rows(server, shown):
    """Return the ledger's rows by call, once all calls are in it."""
    wanted = {shown(case).call_id for case in CASES if case.way != "batch"}

    def found():
        rows = {row["call_id"]: row for row in server.rows()}
        return rows if wanted <= rows.keys() else None

    return eventually(found, "calls are missing in the ledger")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_answer_is_what_it_is_or_the_workers_failure(server, shown, rows, case):
    seen, expected = shown(case), case.expected
    assert (seen.status, seen.ended) == (expected.status, expected.ended), seen
    assert expected.says in seen.says
    assert "internal" not in seen.says
    assert not {"10.1.2.3", "http:"} & set(seen.says.split("/"))
    if expected.text is not None:
        assert seen.text == expected.text
    assert [tuple(each) for each in seen.tools] == list(expected.tools)
    if case.way == "batch":
        return
    assert server.workers.attempts[case.id] == expected.attempts
    entry = rows[seen.call_id]
    assert entry["outcome"] == expected.outcome
    assert "internal" not in (entry["error"] or "")
    assert "disconnected" not in (entry["error"] or "")
    if expected.output_tokens is not None:
        assert entry["output_tokens"] == expected.output_tokens
