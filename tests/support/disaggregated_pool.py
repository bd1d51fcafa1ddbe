"""A prefill and a decode engine behind a proxy, as one worker."""

import asyncio
import threading

import aiohttp
from aiohttp import web
from hang_up import ends_quietly
from scripted_worker import DEADLINE_S, ScriptedWorker


class DisaggregatedPool:
    """A proxy that has one engine read each prompt, and then the other one answer the call."""

    def __init__(self):
        self.prefill, self.decode = (ScriptedWorker(tokenizes=True) for _ in range(2))
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(DEADLINE_S)

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[ends_quietly])
        app.router.add_get("/{page:.*}", self._page)
        app.router.add_post("/v1/{call:.*}", self._call)
        app.router.add_post("/tokenize", self._tokenize)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        async with aiohttp.ClientSession() as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _page(self, request):
        if request.path == "/metrics":  # each engine has its own
            return web.Response(status=404)
        async with self._session.get(self.decode.url + request.path) as answer:
            return web.Response(body=await answer.read(), content_type="application/json")

    async def _tokenize(self, request):
        return await self._pass(request, self.prefill, await request.json())

    async def _call(self, request):
        body = await request.json()
        first = {name: value for name, value in body.items() if name != "stream_options"}
        first |= {"max_tokens": 1, "stream": False}
        async with self._session.post(self.prefill.url + request.path, json=first) as answer:
            await answer.read()
        return await self._pass(request, self.decode, body)

    async def _pass(self, request, engine, body):
        async with self._session.post(engine.url + request.path, json=body) as answer:
            kind = {"content-type": answer.headers["content-type"]}
            response = web.StreamResponse(status=answer.status, headers=kind)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.prefill.close()
        self.decode.close()
