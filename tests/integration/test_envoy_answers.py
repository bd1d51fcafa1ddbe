"""Answers through the real Envoy equal those of the embedded plane, event by event, in any chunks."""

import asyncio
import itertools
import json

import aiohttp
import orjson
import pytest
from envoy_plane import WHOLE as ANSWER
from envoy_plane import answering, envoy_plane, facts_of, splitting, streaming
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from until import until

from fairserve.engine.wire.base import WorkerChunk
from fairserve.platform.serving.completions.sse import ChunkWriter
from fairserve.platform.serving.completions.usage import UsageMeter

PATH = "/v1/chat/completions"
ID, MODEL = "chatcmpl-1", 'public "name" é'
PROMPT_TOKENS = 11


class World:
    """A plane on a loop of its own, for many examples."""

    def __init__(self):
        self._runner = asyncio.Runner()
        self._numbers = itertools.count()
        self._plane = envoy_plane(change=splitting)
        self.plane = self._runner.run(self._plane.__aenter__())
        self.session = self._runner.run(self._session())
        self.worker = self._runner.run(self.plane.worker(answering()))

    def _end(self, name):
        ends = self.plane.decisions.ends()
        return next(
            (e for e in ends if e.request.request_headers["x-fairserve-call"] == name), None
        )

    async def _session(self):
        return aiohttp.ClientSession()

    def close(self):
        self._runner.run(self.session.close())
        self._runner.run(self._plane.__aexit__(None, None, None))
        self._runner.close()

    def ask(self, script, **call):
        """Return the status, the headers and the body of an answer, and what the log was given."""
        return self._runner.run(self._ask(script, call))

    async def _ask(self, script, call):
        decisions = self.plane.decisions
        self.worker.script = script
        self.plane.describe(id=ID, model=MODEL, prompt_tokens=PROMPT_TOKENS, **call)
        name = decisions.set_headers["x-fairserve-call"] = f"r{next(self._numbers)}"
        async with self.session.post(self.plane.url + PATH, data=b"{}") as response:
            body = await response.read()
        entry = await until(lambda: self._end(name))
        decisions.entries.clear()
        facts = facts_of(entry)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, body, facts


@pytest.fixture(scope="module")
def world():
    world = World()
    yield world
    world.close()


def in_chunks(body, sizes, kind="text/event-stream"):
    """Return a script whose answer reaches the filter in chunks of these sizes."""
    return answering(body=body, content_type=kind, x_split=",".join(map(str, sizes)))


def event(data, dumps=orjson.dumps):
    text = dumps(data)
    return b"data: " + (text if isinstance(text, bytes) else text.encode()) + b"\n\n"


def events_of(body):
    """Return the events of a stream, decoded; comments do not occur."""
    texts = body.split(b"\n\n")
    assert texts.pop() == b"", body
    assert all(text.startswith(b"data: ") for text in texts), body
    return [
        text if text == b"data: [DONE]" else orjson.loads(text.removeprefix(b"data: "))
        for text in texts
    ]


def embedded(chunks, call):
    """Return the events and the meter of the embedded plane for the same chunks of a worker."""
    writer = ChunkWriter(
        ID,
        MODEL,
        include_usage=call["include_usage"],
        continuous_usage=call["continuous_usage"],
    )
    meter = UsageMeter(PROMPT_TOKENS, 0)
    body = b""
    for chunk in chunks:
        meter.read(chunk)
        body += writer.event(WorkerChunk(chunk))
    return events_of(body + writer.end(meter.answer())), meter


def apart_from_usage(events):
    """Return events without the worker's usage, which Envoy passes on, and the meter replaces."""
    kept = [each for each in events if each == b"data: [DONE]" or each.get("choices")]
    return [
        each if each == b"data: [DONE]" else {k: v for k, v in each.items() if k != "usage"}
        for each in kept
    ]


# --- streams ------------------------------------------------------------------------------------------

TEXT = st.one_of(
    st.sampled_from(
        ["", " a", "é", '"', "\\", '\\"', "{", "}]", "\n\n", "data: [DONE]", "😀", "\x7f"]
    ),
    st.text(max_size=8, alphabet=st.characters(exclude_categories=("Cs",))),
)
NUMBER = st.integers(0, 10_000)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "", None]),
        "content": TEXT | st.none(),
        "reasoning_content": TEXT,
        "refusal": st.none() | TEXT,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 2)},
                optional={"function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})},
            ),
            max_size=2,
        ),
    },
)
CHOICE = st.fixed_dictionaries(
    {"index": st.integers(0, 2)},
    optional={
        "delta": DELTA,
        "text": TEXT,
        "finish_reason": st.sampled_from([None, "stop", "length"]),
        "logprobs": st.sampled_from([None, {}, {"content": [{"token": "}", "bytes": [1, 2]}]}]),
        "stop_reason": st.sampled_from([None, 7, [1], {"a": '"'}]),
    },
)
USAGE = st.fixed_dictionaries(
    {"completion_tokens": NUMBER, "total_tokens": NUMBER},
    optional={
        "prompt_tokens": NUMBER,
        "prompt_tokens_details": st.sampled_from([None, {}, {"cached_tokens": 3}]),
    },
)
CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["w-1", 'w"2']),
        "object": st.just("chat.completion.chunk"),
        "created": st.sampled_from([1, 12, 123]),
        "model": st.sampled_from(["m", "m{"]),
        "choices": st.lists(CHOICE, max_size=3),
        "usage": USAGE | st.none(),
        "system_fingerprint": TEXT | st.none(),
        "error": st.none(),
        "kv": st.sampled_from([{"a": [1, {"b": "]"}]}, -1.5e3, True, False]),
    },
)
FINISHED = {"choices": [{"index": index, "finish_reason": "stop"} for index in range(3)]}
DUMPS = {
    "orjson": orjson.dumps,
    "spaces": json.dumps,
    "indented": lambda data: json.dumps(data, ensure_ascii=False, indent=1).replace("\n", " "),
}
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5) | st.just([1]) | st.just([100_000])
CALL = st.fixed_dictionaries({"include_usage": st.booleans(), "continuous_usage": st.booleans()})
ROLE = {
    "id": "w-1",
    "object": "chat.completion.chunk",
    "created": 12,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
}


@given(
    st.lists(CHUNK, max_size=6),
    CALL,
    SIZES,
    st.sampled_from(sorted(DUMPS)),
    st.sampled_from([b"", b": comment\n\n", b"event: x\r\nid: 3\r\n"]),
)
@example(
    [{"id": "w", "model": "m", "created": n, "choices": ROLE["choices"]} for n in (12, 123)],
    {"include_usage": True, "continuous_usage": False},
    [1],
    "orjson",
    b"",
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_streams_equal_those_of_the_embedded_plane(world, chunks, call, sizes, dumps, between):
    chunks = [*chunks, FINISHED]
    body = between.join(event(chunk, DUMPS[dumps]) for chunk in chunks) + b"data: [DONE]\n\n"

    expected, meter = embedded(chunks, call)
    status, headers, answer, facts = world.ask(in_chunks(body, sizes), stream=True, **call)
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert apart_from_usage(events_of(answer)) == apart_from_usage(expected)
    assert facts["started"]
    assert facts["complete"]
    assert "error" not in facts
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    if usages:
        assert facts["output_tokens"] == max(usage["completion_tokens"] for usage in usages)
    else:
        guess = max(facts["chunks"], -(-facts["output_bytes"] // 4))
        assert guess == meter.total().output_tokens
    tools = any(
        (choice.get("delta") or {}).get("tool_calls")
        for chunk in chunks
        for choice in chunk.get("choices") or ()
    )
    assert facts.get("tool_calls", False) == tools


REPORTED = "it reported an error"
NOT_ENDED = "it sent an answer without choices that all have ended"


def broken(world, body, sizes=(7,)):
    """Return the last event, decoded, of a stream that breaks, and what the log was given."""
    call = {"stream": True, "include_usage": True}
    status, _, answer, facts = world.ask(in_chunks(body, sizes), **call)
    assert status == 200
    assert b"[DONE]" not in answer
    assert "complete" not in facts
    return events_of(answer)[-1], facts


@pytest.mark.parametrize(
    ("end", "reason", "text"),
    [
        (event({"error": {"message": "at 10.0.0.5"}}), "it reported: at 10.0.0.5", REPORTED),
        (event({"error": "gone"}), "it reported: gone", REPORTED),
        (b"data: {nothing}\n\n", "it sent an event that is not JSON", None),
        (b"data: [1]\n\n", "it sent an event that is not an object", None),
        (b'data: {"choices": [{"index": 0,\n\n', "it sent an event that is not JSON", None),
        (b"data: [DONE]\n\n", "it ended without a finish_reason", None),
        (b"", "the connection ended without [DONE]", None),
        (b"data: {", "the connection ended without [DONE]", None),
    ],
)  # fmt: skip
def test_a_broken_stream_ends_with_an_error_of_ours(world, end, reason, text):
    last, facts = broken(world, event(ROLE) + end)
    text = text or "its connection broke, or it did not answer in time"
    assert last == {
        "error": {
            "message": f"worker w0 failed while it was answering: {text}",
            "type": "worker_error",
            "param": None,
            "code": "worker_failed",
        }
    }
    assert facts["error"] == reason


REJECTION = {
    "message": 'no "such" schema',
    "type": "invalid_request_error",
    "param": "response_format",
    "code": "schema_not_followed",
}


def test_a_rejection_in_a_stream_is_the_worker_s(world):
    last, facts = broken(world, event(ROLE) + event({"error": REJECTION | {"host": "10.0.0.5"}}))
    assert last == {"error": REJECTION}
    assert facts["rejected"]
    assert facts["error"] == 'it reported: no "such" schema'


def test_an_error_in_the_log_is_short(world):
    _, facts = broken(world, event({"error": {"message": "x" * 1000}}), [100_000])
    assert len(facts["error"]) == 300


def test_nothing_follows_an_error(world):
    body = event(ROLE) + event({"error": "gone"}) + event(FINISHED) + b"data: [DONE]\n\n"
    last, _ = broken(world, body, [3])
    assert last["error"]["code"] == "worker_failed"


def test_an_event_without_end_is_bounded(world):
    piece = b'data: {"choices": "' + b"x" * (1 << 20)
    script = streaming([event(ROLE), *[piece] * 9, b"\n\n"])
    status, _, answer, facts = world.ask(script, stream=True)
    assert status == 200
    assert events_of(answer)[-1]["error"]["code"] == "worker_failed"
    assert facts["error"] == f"it sent an event over {8 << 20} bytes"


def test_events_pass_as_they_arrive(world):
    """The first event reaches the client while the second one is in parts."""
    received = asyncio.Event()
    second = event(FINISHED)

    async def script(_, writer):
        await streaming([event(ROLE) + second[:9]], end=False)(_, writer)
        await received.wait()
        rest = second[9:] + b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))

    async def read():
        world.worker.script = script
        world.plane.describe(id=ID, model=MODEL, stream=True)
        async with world.session.post(world.plane.url + PATH, data=b"{}") as response:
            first = await response.content.readuntil(b"\n\n")
            received.set()
            return events_of(first), events_of(await response.content.read())

    first, rest = world._runner.run(read())
    assert first == [{**ROLE, "id": ID, "model": MODEL}]
    assert rest == [{**FINISHED, "id": ID, "model": MODEL}, b"data: [DONE]"]


# --- whole answers ------------------------------------------------------------------------------------

MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT | st.none()},
    optional={
        "tool_calls": st.just([{"id": "a", "function": {"name": "f", "arguments": '{"x": "}"}'}}])
    },
)
WHOLE = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 2), "finish_reason": st.sampled_from(["stop", "length"])},
                optional={"message": MESSAGE, "text": TEXT},
            ),
            min_size=1,
            max_size=3,
        )
    },
    optional={
        "id": st.just("w-1"),
        "model": st.just("m"),
        "created": NUMBER,
        "error": st.none(),
        "usage": USAGE,
        "kv": st.sampled_from([{"a": [1, {"b": "]"}]}, -1.5e3, "}"]),
    },
)


def text_of(choice):
    """Return all output texts of a choice."""
    message = choice.get("message") or {}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    called = [each["name"] + each["arguments"] for each in functions]
    return "".join([choice.get("text") or "", message.get("content") or "", *called])


@given(WHOLE, st.sampled_from(sorted(DUMPS)), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whole_answers_get_id_model_and_usage(world, data, dumps, sized):
    text = DUMPS[dumps](data)
    body = text if isinstance(text, bytes) else text.encode()
    script = answering(body=body) if sized else streaming([body[:20], body[20:]])
    status, headers, answer, facts = world.ask(script)
    assert status == 200
    assert headers["content-type"] == "application/json"
    answer = orjson.loads(answer)
    usage = answer.pop("usage")
    expected = {name: value for name, value in data.items() if name != "usage"}
    assert answer == {**expected, "id": ID, "model": MODEL}
    if "usage" in data:
        assert usage == data["usage"]
        assert facts["output_tokens"] == usage["completion_tokens"]
    else:
        texts = [text_of(choice) for choice in data["choices"]]
        counted = max(len(list(filter(None, texts))), -(-len("".join(texts).encode()) // 4))
        assert usage["completion_tokens"] == counted
        assert usage["total_tokens"] == counted + PROMPT_TOKENS
    assert facts["complete"]
    assert facts.get("tool_calls", False) == any(
        "tool_calls" in (choice.get("message") or {}) for choice in data["choices"]
    )


@pytest.mark.parametrize("sized", [True, False])
def test_embeddings_of_any_size_pass(world, sized):
    vectors = [{"index": i, "embedding": [0.125] * 4096} for i in range(64)]
    data = {
        "object": "list",
        "model": "m",
        "data": vectors,
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    body = orjson.dumps(data)
    assert len(body) > 1 << 20
    status, _, answer, facts = world.ask(answering(body=body) if sized else streaming([body]))
    assert status == 200
    assert orjson.loads(answer) == {**data, "id": ID, "model": MODEL}
    assert facts["complete"]
    assert facts["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "key sk-1234 is bad"}}', "it reported: key sk-1234 is bad"),
        (b"[1]", "its answer is not an object"),
        (b'{"choices": [', "its answer is not JSON"),
        (b'{"choices": []}', NOT_ENDED),
        (b'{"choices": [{"message": {"content": "a"}, "finish_reason": null}]}', NOT_ENDED),
        (b'{"object": "other"}', NOT_ENDED),
    ],
)
def test_a_bad_whole_answer_has_the_status_of_an_error(world, body, reason):
    status, headers, answer, facts = world.ask(answering(body=body))
    assert status == 502
    assert headers["content-type"] == "application/json"
    assert orjson.loads(answer)["error"]["code"] == "worker_failed"
    assert b"sk-1234" not in answer
    assert facts["error"] == reason


def test_a_rejection_as_a_whole_answer_has_status_400(world):
    body = orjson.dumps({"error": REJECTION | {"host": "10.0.0.5"}})
    status, _, answer, facts = world.ask(answering(body=body))
    assert (status, orjson.loads(answer)) == (400, {"error": REJECTION})
    assert facts["rejected"]


def test_a_bad_answer_of_unknown_length_is_an_error_in_the_body(world):
    """Its status has left: the difference to the embedded plane is listed in the guide."""
    begun = asyncio.Event()

    async def script(_, writer):
        await streaming([b'{"choices": ['], end=False)(_, writer)
        await begun.wait()
        writer.write(b"0\r\n\r\n")

    async def read():
        world.worker.script = script
        world.plane.describe(id=ID, model=MODEL)
        async with world.session.post(world.plane.url + PATH, data=b"{}") as response:
            begun.set()
            return response.status, await response.json()

    status, answer = world._runner.run(read())
    assert status == 200
    assert answer["error"]["code"] == "worker_failed"


# --- headers ------------------------------------------------------------------------------------------


def test_clients_get_no_headers_of_workers(world):
    script = answering(body=ANSWER, server="vllm", x_node="gpu7", set_cookie="a=b")
    _, headers, _, _ = world.ask(script)
    assert set(headers) == {
        "content-type", "content-length", "date", "x-call-id", "x-fairserve-worker",
    }  # fmt: skip


def test_streams_forbid_proxies_to_buffer_them(world):
    body = event(FINISHED) + b"data: [DONE]\n\n"
    _, headers, _, _ = world.ask(in_chunks(body, [100]), stream=True)
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
