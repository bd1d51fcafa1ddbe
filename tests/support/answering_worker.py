"""Workers of every kind in one thread, which answer with given bytes.

The first word of a call's input that begins with ``case:`` names its answers, one for each attempt; the
last one is repeated.
"""

import asyncio
import functools
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web
from hang_up import ends_quietly

DEADLINE_S = 90
KINDS = ("vllm", "openai", "embedded", "embed")
"""vLLM's dialect, a plain server (behind a local queue), our own worker, and vLLM with an embedding
model."""
MODELS = {kind: f"{kind}-model" for kind in KINDS}
NAME = re.compile(r"case:([\w-]+)")


@dataclass(frozen=True)
class Answer:
    """Raw bytes of an answer. With ``breaks`` the connection breaks after them."""

    body: bytes
    status: int = 200
    headers: dict = field(default_factory=dict)
    kind: str = "application/json"
    breaks: bool = False


class AnsweringWorkers:
    """A server for each kind. ``answers`` maps the name of a case to its answers."""

    def __init__(self, answers):
        self.answers = answers
        self.attempts = Counter()
        """Calls of each case."""
        self.urls = {}
        self._started, self._loop = threading.Event(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(DEADLINE_S)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)

    def entries(self):
        """Return the workers' entries of a fleet file."""
        return [
            {
                "id": kind,
                "url": self.urls[kind],
                "kind": "openai" if kind == "openai" else "vllm",
                "model": MODELS[kind],
            }
            for kind in KINDS
        ]

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runners = []
        for kind in KINDS:
            app = web.Application(middlewares=[ends_quietly])
            app.router.add_get("/{page:.*}", functools.partial(self._page, kind))
            app.router.add_post("/{page:.*}", self._call)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.urls[kind] = f"http://127.0.0.1:{runner.addresses[0][1]}"
            runners.append(runner)
        self._started.set()
        await self._stop.wait()
        for runner in runners:
            await runner.cleanup()

    async def _page(self, kind, request):
        if request.path == "/v1/models":
            owner = "fairserve" if kind == "embedded" else "test"
            entry = {"id": MODELS[kind], "owned_by": owner, "max_model_len": 4096}
            return web.json_response({"object": "list", "data": [entry]})
        if request.path == "/health":
            return web.Response()
        if request.path == "/openapi.json" and kind == "embed":
            paths = {"/v1/embeddings": {}, "/v1/rerank": {}}
            return web.json_response({"paths": paths})
        if request.path == "/version" and kind != "openai":
            return web.json_response({"version": "0.33.0"})
        return web.Response(status=404)

    async def _call(self, request):
        found = NAME.search(await request.text())
        if found is None:
            return web.Response(status=404)
        answers = self.answers[found[1]]
        answer = answers[min(self.attempts[found[1]], len(answers) - 1)]
        self.attempts[found[1]] += 1
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_type = answer.kind
        await response.prepare(request)
        await response.write(answer.body)
        if answer.breaks:
            request.transport.abort()
        return response


# --- answers ------------------------------------------------------------------------------------------


def events(*parts, done=True, breaks=False):
    """Return a stream of these objects; bytes are events as they are."""
    body = b"".join(
        b"data: " + (part if isinstance(part, bytes) else json.dumps(part).encode()) + b"\n\n"
        for part in parts
    )
    body += b"data: [DONE]\n\n" if done else b""
    return Answer(body, kind="text/event-stream", breaks=breaks)


def whole(value, status=200, **headers):
    """Return one object, or the bytes as they are."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(body, status, named)
