"""A worker without a model, in a process of its own: ``python -m ...stub_worker STEP_MS [KV_BLOCKS]``.

It speaks vLLM's dialect and generates a token of each running call every ``STEP_MS``, all calls in one
step, as an engine with continuous batching does. A call that is not streamed is answered when its last
token is due. It prints its port, and ends with its standard input; a line there pauses its steps, and
the next line resumes them.

Cost: about 10 us for each chunk, and 60 us for each call, so that one core carries tens of thousands of
tokens a second. Weakness: it has no queue; a call begins with the next step, however many others run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import httptools

from fairserve.benchmarks.bench.gateway.calls import HOLD, MODEL, PATH, TOKENS

KV_BLOCKS, BLOCK_TOKENS = 1 << 18, 16
CONTEXT_TOKENS = 32_768
VERSION = "0.33.0"
_CHARS_PER_TOKEN = 4
_END = b"0\r\n\r\n"
_JSON = b"application/json"


class StubEngine:
    """The running calls, and the step that gives each of them a token."""

    def __init__(self, step_s: float, kv_blocks: int = KV_BLOCKS) -> None:
        """A step takes ``step_s``; the KV cache is said to have ``kv_blocks``."""
        self.step_s, self.kv_blocks = step_s, kv_blocks
        self.calls = 0
        """Calls so far."""
        self.paused = False
        """No call gets a token."""
        self._running: dict[Generation, None] = {}

    def __len__(self) -> int:
        """Return the number of calls that are running."""
        return len(self._running)

    def add(self, generation: Generation) -> None:
        """Run a call from the next step on."""
        self._running[generation] = None

    def discard(self, generation: Generation) -> None:
        """End a call, if it is running."""
        self._running.pop(generation, None)

    async def run(self) -> None:
        """Take a step every ``step_s``. Steps that are late are not made up for."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self.step_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            for generation in () if self.paused else list(self._running):
                generation.step()


class Generation:
    """The answer of one call, token by token."""

    def __init__(
        self,
        engine: StubEngine,
        write: Callable[[bytes], None],
        body: dict[str, Any],
        prompt_tokens: int,
    ) -> None:
        """Answer ``body`` with ``write``, which gets whole parts of an HTTP response."""
        engine.calls += 1
        self._engine, self._write = engine, write
        self._id = f"chatcmpl-{engine.calls:012d}"
        self._prompt_tokens = prompt_tokens
        self._tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        self._streams = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        self._include_usage = bool(options.get("include_usage"))
        self._running_usage = bool(options.get("continuous_usage_stats"))
        self._model = body.get("model", MODEL)
        self._done = 0
        self._stopped = False
        self._pause_s = _pause_s(body)
        self._chunks: list[bytes] = []
        """Chunks without usage, made once: the tokens of a call repeat."""

    def begin(self) -> None:
        """Send the header of a stream, and run."""
        if self._streams:
            self._write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
                + self._event({"role": "assistant", "content": ""})
            )
        self._engine.add(self)

    def step(self) -> None:
        """Generate one token."""
        self._done += 1
        if self._streams:
            self._write(self._chunk_of(self._done - 1))
        if self._done == self._tokens:
            self._end()
        elif self._done == 1 and self._pause_s:
            self._engine.discard(self)
            self._resume_after(time.monotonic() + self._pause_s)

    def stop(self) -> None:
        """End the call without an answer: its client has left."""
        self._engine.discard(self)
        self._stopped = True

    def _resume_after(self, due_s: float) -> None:
        """Run again, and never early: a timer of the loop counts from the time of its last turn."""
        if self._stopped:
            return
        left_s = due_s - time.monotonic()
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._resume_after, due_s)
        else:
            self._engine.add(self)

    def _end(self) -> None:
        self._engine.discard(self)
        if not self._streams:
            self._write(response(200, json.dumps(self._whole()).encode()))
            return
        last = self._event({}, finish_reason="length")
        usage = self._event(None) if self._include_usage else b""
        self._write(last + usage + _http_chunk(b"data: [DONE]\n\n") + _END)

    def _chunk_of(self, number: int) -> bytes:
        turn = number % len(TOKENS)
        if self._running_usage:
            return self._event({"content": TOKENS[turn]})
        if number < len(TOKENS):
            self._chunks.append(self._event({"content": TOKENS[turn]}))
        return self._chunks[turn]

    def _whole(self) -> dict[str, Any]:
        text = "".join(TOKENS[number % len(TOKENS)] for number in range(self._tokens))
        message = {"role": "assistant", "content": text, "tool_calls": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": 1,
            "model": self._model,
            "choices": [choice],
            "usage": self._usage(),
        }

    def _event(self, delta: dict[str, Any] | None, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        event: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self._model,
            "choices": [] if delta is None else [choice],
        }
        if delta is None or self._running_usage:
            event["usage"] = self._usage()
        return _http_chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._done,
            "total_tokens": self._prompt_tokens + self._done,
        }


class StubConnection(asyncio.Protocol):
    """One connection of a gateway: requests one after another."""

    def __init__(self, engine: StubEngine) -> None:
        """Answer with the tokens of ``engine``."""
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", bytearray()
        self._generation: Generation | None = None

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not derived from it

    def data_received(self, data: bytes) -> None:
        """Parse what was received."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the running call."""
        if self._generation is not None:
            self._generation.stop()

    # --- the parser -------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Take the path of the next request."""
        self._path += url

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer the request."""
        path, body = self._path.decode("ascii", "replace"), bytes(self._body)
        self._path, self._body = b"", bytearray()
        if self._parser.get_method() == b"POST" and path == PATH:
            self._generation = Generation(
                self._engine, self._write, json.loads(body), len(body) // _CHARS_PER_TOKEN
            )
            self._generation.begin()
        else:
            self._write(page(path, len(self._engine), self._engine.kv_blocks))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def page(path: str, running: int, kv_blocks: int) -> bytes:
    """Return the response to a request that is no call."""
    if path == "/health":
        return response(200, b"")
    if path == "/version":
        return response(200, json.dumps({"version": VERSION}).encode())
    if path == "/v1/models":
        model = {
            "id": MODEL,
            "object": "model",
            "owned_by": "vllm",
            "max_model_len": CONTEXT_TOKENS,
        }
        return response(200, json.dumps({"object": "list", "data": [model]}).encode())
    if path == "/metrics":
        text = (
            f'vllm:num_requests_running{{model_name="{MODEL}"}} {running}\n'
            f'vllm:num_requests_waiting{{model_name="{MODEL}"}} 0\n'
            f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",num_gpu_blocks="{kv_blocks}"}} 1\n'
        )
        return response(200, text.encode(), b"text/plain; version=0.0.4")
    return response(404, b'{"error":{"message":"not found","code":404}}')


def response(status: int, body: bytes, content_type: bytes = _JSON) -> bytes:
    """Return an HTTP response."""
    return b"HTTP/1.1 %d -\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        content_type,
        len(body),
        body,
    )


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _pause_s(body: dict[str, Any]) -> float:
    content = body["messages"][-1]["content"]
    if not isinstance(content, str) or not content.startswith(HOLD + " "):
        return 0.0
    return float(content.split(maxsplit=2)[1])


async def serve(step_s: float, kv_blocks: int = KV_BLOCKS) -> None:
    """Serve on a free port of the loopback until the standard input ends."""
    loop = asyncio.get_running_loop()
    engine = StubEngine(step_s, kv_blocks)
    server = await loop.create_server(lambda: StubConnection(engine), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    steps = asyncio.create_task(engine.run())
    while await loop.run_in_executor(None, sys.stdin.readline):
        engine.paused = not engine.paused
    steps.cancel()
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(float(sys.argv[1]) / 1000, *map(int, sys.argv[2:])))
