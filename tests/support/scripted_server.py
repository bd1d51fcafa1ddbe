"""A worker on the loopback with scripted behaviour, in the test's own event loop.

The first word of a call's prompt selects it: ``ok`` answers three tokens, ``many`` three in one
chunk, ``silent`` three without any usage, ``each`` three of each sample, which it counts apart as vLLM
does, ``hold`` waits for ``released`` after the first chunk,
``stall`` before the header, ``die`` breaks the connection before anything, ``empty`` ends it after
the header, ``break`` after two tokens, ``cut`` ends the stream there as if it were complete,
``nothing`` before the first, ``busy`` answers 503, ``later`` 429, ``refuse`` 400, ``away``
redirects.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import web
from hang_up import ends_quietly

METRICS = """\
# HELP vllm:num_requests_running Sequences.
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {used}
vllm:prefix_cache_queries_total{{engine="0"}} 1.0e+02
vllm:prefix_cache_hits_total{{engine="0"}} 40.0
vllm:cache_config_info{{block_size="16",num_gpu_blocks="64",enable_prefix_caching="True"}} 1.0
"""


class ScriptedServer:
    """A scripted server as async context manager; ``kind`` is vLLM's dialect, or plain ``openai``."""

    def __init__(self, kind="vllm", *, token="", models=("m",), version="0.33.0", ssl=None):
        self.kind, self.token, self.models, self.version = kind, token, list(models), version
        self.lengths = {}
        self.running, self.waiting, self.used = 0, 0, 0.0
        self.healthy = True
        self.failing = False
        """Flag: every call is answered 500."""
        self.failures = 0
        """Number of the next calls that fail."""
        self.throttled = 0
        """Number of the next calls that are answered 429."""
        self.retry_after = "7"
        self.tokens = [1]
        """Answer of ``/tokenize``."""
        self.bodies, self.paths = [], []
        self.disconnects = 0
        self.under_way = self.most_under_way = 0
        self.released, self.gone, self.arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ssl = ssl

    async def __aenter__(self):
        app = web.Application(middlewares=[ends_quietly])
        app.router.add_get("/{page:.*}", self._page)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._ssl)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc):
        self.released.set()
        await self._runner.cleanup()

    def _may(self, request):
        return not self.token or request.headers.get("authorization") == f"Bearer {self.token}"

    async def _page(self, request):
        path = request.path
        self.paths.append(path)
        if path == "/v1/models":
            if not self._may(request):
                return web.json_response({"error": {"message": "no"}}, status=401)
            if not self.healthy:
                return web.Response(status=500)
            data = [{"id": name, **self.lengths.get(name, {})} for name in self.models]
            return web.json_response({"object": "list", "data": data})
        if self.kind == "vllm" and path == "/health":
            return web.Response(status=200 if self.healthy else 503)
        if self.kind == "vllm" and path == "/metrics":
            text = METRICS.format(running=self.running, waiting=self.waiting, used=self.used)
            return web.Response(text=text)
        if self.kind == "vllm" and path == "/version" and self.version is not None:
            return web.json_response({"version": self.version})
        return web.Response(status=404)

    async def _tokenize(self, request):
        return web.json_response({"tokens": self.tokens})

    async def _chat(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.arrived.set()
        if not self._may(request):
            return web.json_response({"error": {"message": "no"}}, status=401)
        word = body["messages"][-1]["content"].split()[0]
        if self.failing or self.failures:
            self.failures = max(0, self.failures - 1)
            return web.json_response({"error": {"message": "broken"}}, status=500)
        if word == "busy":
            return web.json_response({"error": {"message": "busy"}}, status=503)
        if word == "later" or self.throttled:
            self.throttled = max(0, self.throttled - 1)
            headers = {"Retry-After": self.retry_after}
            return web.json_response({"error": {"message": "later"}}, status=429, headers=headers)
        if word == "refuse":
            error = {"message": "no tools here", "param": "tools", "code": "unsupported_parameter"}
            return web.json_response({"error": error}, status=400)
        if word == "away":
            raise web.HTTPTemporaryRedirect(self.url + "/elsewhere")
        if word == "die":
            request.transport.abort()
            return web.Response()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._answer(word, body, request)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            self.gone.set()
            raise
        finally:
            self.under_way -= 1

    async def _answer(self, word, body, request):
        if word == "stall":
            await self.released.wait()
        if not body["stream"]:
            message = {"role": "assistant", "content": "one two three"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 12, "completion_tokens": 3}
            return web.json_response({"id": "c", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if word == "empty":
            request.transport.abort()
            return response
        every = body["stream_options"].get("continuous_usage_stats", False) and word != "silent"
        last = body["stream_options"].get("include_usage", False) and word != "silent"

        async def send(delta, tokens, finish=None, usage=every, sample=0):
            choices = [{"index": sample, "delta": delta, "finish_reason": finish}]
            chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
            chunk["choices"] = choices if delta is not None else []
            if usage:
                chunk["usage"] = {"prompt_tokens": 12, "completion_tokens": tokens}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

        await send({"role": "assistant", "content": ""}, 0)
        if word == "hold":
            await self.released.wait()
        if word == "each":
            samples = range(body["n"])
            for count in (1, 2, 3):
                for sample in samples:
                    await send({"content": f"{count} "}, count, sample=sample)
            for sample in samples:
                await send({}, 3, "stop", sample=sample)
            if last:
                await send(None, 3 * len(samples), usage=True)
            await response.write(b"data: [DONE]\n\n")
            return response
        if word in ("cut", "nothing"):
            for text in ("one ", "two ")[: 2 * (word == "cut")]:
                await send({"content": text}, 1)
            await response.write(b"data: [DONE]\n\n")
            return response
        if word == "many":
            await send({"content": "one two three"}, 3)
        else:
            for count, text in enumerate(("one ", "two ", "three"), 1):
                await send({"content": text}, count)
                if count == 2 and word == "break":
                    request.transport.abort()
                    return response
        await send({}, 3, "stop")
        if last:
            await send(None, 3, usage=True)
        await response.write(b"data: [DONE]\n\n")
        return response
