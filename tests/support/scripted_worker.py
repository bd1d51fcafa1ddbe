"""A worker in a thread of the test, whose behaviour is selected by the prompts."""

import asyncio
import json
import threading

from aiohttp import web
from hang_up import ends_quietly

from fairserve.engine.wire.base import WorkerChunk
from fairserve.platform.serving.completions.merge import Merger

DEADLINE_S = 90
TEXT = "/v1/completions"
ERRORS = {
    "poison": (
        500,
        "",
        "CUDA error: device-side assert in http://10.0.0.7:8000/v1?k=1, vllm-0.vllm.svc:8000,"
        " 127.0.0.1, key sk-upstream-1234, see /srv/vllm/log",
    ),
    "denied": (401, "", "Incorrect API key provided: sk-upstream-1234"),
    "account": (500, "invalid_api_key", "Incorrect API key provided: sk-upstream-1234"),
}
"""Status, code and message of the answers to these words."""


class ScriptedWorker:
    """A worker without a model: the first word of a call's prompt selects its behaviour.

    ``ok`` answers three tokens; ``say`` the words after it, ``think`` after some reasoning; ``once``
    breaks off at its first call, and then answers the words after it; ``use`` requests the tools that
    follow it, whose calls, if they are several, ``meet`` here: none continues before all have come;
    ``hold`` waits for
    :meth:`release` once it has begun, ``stall`` before; ``die`` breaks the connection before
    anything; ``break`` breaks it after two tokens; ``error`` sends an error after two; ``busy``
    answers 503; ``refuse`` 400; ``flood`` sends chunks of 64 KiB until it is cancelled; ``later``
    answers 429; ``poison`` 500, ``denied`` 401 and ``account`` 500 for a reason of the operator's.

    A call that is not streamed gets one object. Its header is sent when the call begins, as our worker
    does; with ``late_heads`` at its end, as vLLM does, and ``stall``ed calls count as waiting.
    """

    def __init__(
        self,
        kv_blocks=64,
        model="scripted",
        *,
        adapters=(),
        tokenizes=False,
        context_tokens=4096,
        late_heads=False,
        port=0,
    ):
        self._port = port
        self.kv_blocks = kv_blocks
        self.late_heads = late_heads
        self.waiting = 0
        self.scrapes = 0
        self.model, self.context_tokens = model, context_tokens
        self.adapters = adapters
        """Names of its LoRA adapters, which may change while it serves."""
        self.tokenizes = tokenizes
        """Flag: the worker has ``/tokenize``, with a token for each byte."""
        self.bodies = []
        self.request_ids = []
        """The ``x-request-id`` of each call."""
        self.traceparents = []
        """The ``traceparent`` of each call."""
        self.holding = []
        """Texts of the held calls that began, in the order of arrival."""
        self.disconnects = 0
        self.most_running = 0
        """Largest number of calls that ran or waited here at a time."""
        self._once = set()
        self._transports = set()
        self._held = None
        self._met = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(DEADLINE_S)

    def _run(self):
        asyncio.run(self._serve())

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._held = asyncio.Event()
        self._stop = asyncio.Event()
        app = web.Application(middlewares=[ends_quietly])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post(TEXT, self._chat)
        if self.tokenizes:
            app.router.add_post("/tokenize", self._tokenize)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    @property
    def texts(self):
        """Return the last message of each call, in the order of arrival."""
        return [body["messages"][-1]["content"] for body in self.bodies]

    def release(self):
        """Release the calls that are held or about to be."""

        def release():
            self._held.set()
            self._held = asyncio.Event()

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(release)

    def drop(self):
        """Break the connections of all calls that run or wait."""

        def drop():
            for transport in self._transports:
                transport.abort()

        self._loop.call_soon_threadsafe(drop)

    def close(self):
        """End the worker; again, do nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _health(self, request):
        return web.Response()

    async def _models(self, request):
        known = {"id": self.model, "max_model_len": self.context_tokens}
        adapters = [
            {"id": each, "root": f"/{each}", "parent": self.model} for each in self.adapters
        ]
        return web.json_response({"data": [known, *adapters]})

    async def _metrics(self, request):
        labels = f'block_size="16",num_gpu_blocks="{self.kv_blocks}"'
        self.scrapes += 1
        sizes = f"vllm:cache_config_info{{{labels}}} 1\n"
        return web.Response(text=f"{sizes}vllm:num_requests_waiting {self.waiting}\n")

    async def _tokenize(self, request):
        body = await request.json()
        said = [each["content"] for each in body.get("messages", [])]
        return web.json_response({"tokens": list((body.get("prompt") or "".join(said)).encode())})

    async def _chat(self, request):
        body = await request.json()
        held = self._held  # of its arrival: a release before the call holds is not missed
        self.bodies.append(body)
        self.request_ids.append(request.headers.get("x-request-id"))
        self.traceparents.append(request.headers.get("traceparent"))
        if body["model"] not in (self.model, *self.adapters):  # as vLLM does
            error = {"message": f"no model {body['model']!r}", "code": "NotFoundError"}
            return web.json_response({"error": error}, status=404)
        text = request.path == TEXT
        content = body["prompt"] if text else body["messages"][-1].get("content")
        word, _, said = content.partition(" ") if isinstance(content, str) else ("ok", "", "")
        if word == "once":
            word = "say" if said in self._once else "break"
            self._once.add(said)
        if word == "busy":
            return web.json_response({"error": {"message": "full"}}, status=503)
        if word == "refuse":
            error = {"message": "no tools here", "param": "tools", "code": "unsupported_parameter"}
            return web.json_response({"error": error}, status=400)
        if word == "later":
            headers = {"Retry-After": "9999"}
            error = {"message": "Request too large for gpt-x in organization org-1a2b"}
            return web.json_response({"error": error}, status=429, headers=headers)
        if word in ERRORS:
            status, code, message = ERRORS[word]
            error = {"message": message, "code": code}
            return web.json_response({"error": error}, status=status)
        if word == "die":
            request.transport.abort()
            return web.Response()
        answer = self._answer(body, request)
        self._transports.add(request.transport)
        self.most_running = max(self.most_running, len(self._transports))
        try:
            await answer.open()
            await self._stream(word, said, held, request, answer)
            return await answer.end()
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            raise
        finally:
            self._transports.discard(request.transport)

    def _answer(self, body, request):
        """Return the answer to a call, to which events are written, as a stream or as a whole."""
        if body.get("stream"):
            return _Events(request)
        return _Whole(request, self.late_heads)

    async def _stream(self, word, said, held, request, response):
        if word == "stall":
            self.waiting += 1
            try:
                await held.wait()
            finally:
                self.waiting -= 1
        await response.begin()
        await self._send(response, {"role": "assistant", "content": ""}, 0)
        if word == "hold":
            self.holding.append(said)
            await held.wait()
        if word == "flood":
            for count in range(1, 1000):
                padding = {"tokens": [count] * 8192}  # its text alone would be too long an answer
                await self._send(response, {"content": "x"}, 1, padding=padding)
        if word == "meet":
            await self._rendezvous(int(said.split()[0]))
        if word == "use":
            names = said.split()
            does = f"meet {len(names)}" if len(names) > 1 else "ok"
            for count, name in enumerate(names, 1):
                function = {"name": name, "arguments": json.dumps({"input": f"{does} {name}"})}
                asked = {"index": count - 1, "id": f"of_{name}", "type": "function"}
                asked["function"] = function
                await self._send(response, {"tool_calls": [asked]}, 3 * count)
            await self._send(response, {}, 3 * len(names), finish_reason="tool_calls")
            await response.write(b"data: [DONE]\n\n")
            return
        if word == "think":
            for text in ("first ", "then"):
                await self._send(response, {"reasoning": text}, 1)
            word = "say"
        texts = (said[:1], said[1:2], said[2:]) if word == "say" else ("one ", "two ", "three")
        for count, text in enumerate(texts, 1):
            await self._send(response, {"content": text}, count)
            if count == 2 and word == "break":
                request.transport.abort()
                return
            if count == 2 and word == "error":
                error = {"error": {"message": "the GPU fell off", "code": "engine_error"}}
                await response.write(f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode())
                return
        await self._send(response, {}, 3, finish_reason="stop")
        await self._send(response, None, 3)
        await response.write(b"data: [DONE]\n\n")

    async def _rendezvous(self, calls):
        self._met += 1
        if self._met == calls:
            self._met = 0
            self.release()
        else:
            await asyncio.wait_for(self._held.wait(), DEADLINE_S)

    async def _send(self, response, delta, tokens, finish_reason=None, padding=None):
        choice = {"index": 0, "logprobs": padding, "finish_reason": finish_reason}
        if response.text:
            choice["text"] = (delta or {}).get("content", "")
        else:
            choice["delta"] = delta
        chunk = {
            "id": "cmpl-1" if response.text else "chatcmpl-1",
            "object": "text_completion" if response.text else "chat.completion.chunk",
            "created": 1,
            "model": self.model,
            "choices": [] if delta is None else [choice],
            "usage": {
                "prompt_tokens": 12,
                "completion_tokens": tokens,
                "total_tokens": 12 + tokens,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


class _Events:
    """Sends the events of an answer as they are written; the header at once."""

    def __init__(self, request):
        self._request = request
        self.text = request.path == TEXT
        self._response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        self.write = self._response.write

    async def open(self):
        await self._response.prepare(self._request)

    async def begin(self):
        """The call has begun."""

    async def end(self):
        return self._response


class _Whole:
    """Collects the events of an answer, and sends them as one object."""

    def __init__(self, request, late_head):
        self._request = request
        self.text = request.path == TEXT
        self._late_head = late_head
        self._response = web.StreamResponse(headers={"content-type": "application/json"})
        self._merger = Merger()
        self._last = {}

    async def open(self):
        """Send nothing before the call has begun."""

    async def begin(self):
        if not self._late_head:
            await self._response.prepare(self._request)

    async def write(self, event):
        for line in event.decode().splitlines():
            if line.startswith("data: {"):
                self._last = json.loads(line[6:])
                if "error" not in self._last:
                    self._merger.add(WorkerChunk(self._last))

    async def end(self):
        if self._late_head:
            await self._response.prepare(self._request)
        body = self._last
        if "error" not in body:
            body = self._merger.answer(body["id"], body["model"], body["usage"])
        await self._response.write(json.dumps(body).encode())
        return self._response
