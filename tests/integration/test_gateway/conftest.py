"""Real server processes for the gateway's tests, and a worker whose behaviour a test scripts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import httpx
import openai
import pytest
from aiohttp import web
from processes import eventually, free_port

ADMIN_KEY = "sk-test-admin-" + "0" * 40
DEADLINE_S = 90
MODEL = "fairserve-tiny-random"


class Server:
    """``fairserve serve`` as a child process, with one tenant and one app."""

    def __init__(self, data_dir, *flags):
        self.data_dir = data_dir
        self.flags = flags
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = data_dir.with_suffix(".log")
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self.app_key = None
        self.clients = []
        self.start()

    def command(self, *flags):
        base = [sys.executable, "-W", "error::ResourceWarning", "-m", "fairserve.platform.cli"]
        return [*base, "serve", "--data-dir", str(self.data_dir), *flags]

    def environment(self):
        return {**os.environ, "FAIRSERVE_ADMIN_KEY": ADMIN_KEY, "HF_HUB_OFFLINE": "1"}

    def start(self):
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command("--port", str(self.port), *self.flags),
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        eventually(self._ready, f"the server is not ready, see {self.log_path}")
        if self.app_key is None:
            self._register()

    def _ready(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            return self.http.get("/health/readiness").status_code == 200
        except httpx.TransportError:
            return False

    def admin(self, method, path, **body):
        return self.request(method, path, ADMIN_KEY, **body)

    def request(self, method, path, key, **more):
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **more)

    def _register(self):
        tenant = self.admin("POST", "/admin/tenants", json={"name": "tenant"})
        assert tenant.status_code == 201, tenant.text
        self.tenant_key = tenant.json()["api_key"]
        self.app_key = self.new_app("app")

    def new_app(self, name, **limits):
        profile = {
            "stages": [{"input_tokens": 30, "system_tokens": 0, "output_tokens": 20}],
            "calls_per_interaction": 3,
        }
        body = {"name": name, "profile": profile, "limits": limits}
        answer = self.request("POST", "/v1/apps", self.tenant_key, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["api_key"]

    def openai(self, key=None, **more):
        options = {"max_retries": 0, "timeout": DEADLINE_S, **more}
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or self.app_key, **options)
        self.clients.append(client)
        return client

    def post(self, path, body, key=None, **more):
        return self.request("POST", path, key or self.app_key, json=body, **more)

    def rows(self, **where):
        """Ledger rows as dictionaries."""
        database = self.data_dir / "fairserve.sqlite3"
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            condition = " AND ".join(f"{name} = ?" for name in where) or "1"
            query = f"SELECT * FROM ledger_calls WHERE {condition}"
            return [dict(row) for row in connection.execute(query, tuple(where.values()))]

    def row(self, **where):
        """The one row that fits, once it is there."""
        (row,) = eventually(lambda: self.rows(**where), f"no row with {where}")
        return row

    def cluster(self):
        return self.admin("GET", "/admin/cluster").json()

    def worker_pids(self):
        return {p["worker_id"]: p["pid"] for p in self.cluster()["processes"]}

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Ctrl-C; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def close(self):
        for client in self.clients:
            client.close()
        self.http.close()
        if self.process.poll() is None:
            self.kill()


@pytest.fixture(scope="package")
def start_server(tmp_path_factory):
    servers = []

    def start(*flags):
        server = Server(tmp_path_factory.mktemp("server") / "data", *flags)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="package")
def server(start_server):
    """A server with two real workers."""
    return start_server("--workers", "2")


class ScriptedWorker:
    """A worker without a model: it does to a call what the test says, by the prompt's first word.

    ``ok`` answers three tokens; ``say`` what follows it; ``once`` breaks off the first time it comes,
    and then says what follows; ``use`` asks for the tools that follow it; ``hold`` waits for
    :meth:`release` once it has begun, ``stall`` before; ``die`` breaks the connection before
    anything; ``break`` breaks it after two tokens; ``error`` sends an error after two; ``busy``
    answers 503; ``refuse`` 400.
    """

    def __init__(self, kv_blocks=64, model="scripted"):
        self.kv_blocks = kv_blocks
        self.model = model
        self.bodies = []
        self.disconnects = 0
        self._once = set()
        self._held = None
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
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def release(self):
        """Let the held calls go on."""

        def release():
            self._held.set()
            self._held = asyncio.Event()

        self._loop.call_soon_threadsafe(release)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _health(self, request):
        return web.Response()

    async def _models(self, request):
        return web.json_response({"data": [{"id": self.model, "max_model_len": 4096}]})

    async def _metrics(self, request):
        labels = f'block_size="16",num_gpu_blocks="{self.kv_blocks}"'
        return web.Response(text=f"vllm:cache_config_info{{{labels}}} 1\n")

    async def _chat(self, request):
        body = await request.json()
        self.bodies.append(body)
        if body["model"] != self.model:  # as vLLM does
            error = {"message": f"no model {body['model']!r}", "code": "NotFoundError"}
            return web.json_response({"error": error}, status=404)
        word, _, said = body["messages"][-1]["content"].partition(" ")
        if word == "once":
            word = "say" if said in self._once else "break"
            self._once.add(said)
        if word == "busy":
            return web.json_response({"error": {"message": "full"}}, status=503)
        if word == "refuse":
            error = {"message": "no tools here", "param": "tools", "code": "unsupported_parameter"}
            return web.json_response({"error": error}, status=400)
        if word == "die":
            request.transport.abort()
            return web.Response()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(word, said, request, response)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            raise
        return response

    async def _stream(self, word, said, request, response):
        if word == "stall":
            await self._held.wait()
        await self._send(response, {"role": "assistant", "content": ""}, 0)
        if word == "hold":
            await self._held.wait()
        if word == "use":
            for index, name in enumerate(said.split()):
                function = {"name": name, "arguments": json.dumps({"input": f"ok {name}"})}
                asked = {"index": index, "id": f"of_{name}", "type": "function"}
                await self._send(response, {"tool_calls": [{**asked, "function": function}]}, 3)
            await self._send(response, {}, 3, finish_reason="tool_calls")
            await response.write(b"data: [DONE]\n\n")
            return
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

    async def _send(self, response, delta, tokens, finish_reason=None):
        choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.model,
            "choices": [] if delta is None else choices,
            "usage": {
                "prompt_tokens": 12,
                "completion_tokens": tokens,
                "total_tokens": 12 + tokens,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


@pytest.fixture(scope="package")
def scripted():
    workers = [ScriptedWorker(), ScriptedWorker()]
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture(scope="package")
def gateway(start_server, scripted):
    """A server in front of two scripted workers, impatient in everything."""
    return start_server(
        "--worker-urls",
        ",".join(worker.url for worker in scripted),
        "--keepalive-s",
        "0.2",
        "--max-queue-wait-s",
        "1.5",
    )
