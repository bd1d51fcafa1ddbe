"""A worker process without a model that has slots and a KV cache as vLLM has, and can be killed.

Calls run in ``slots`` at a time, if their blocks fit; the others wait in order of arrival, as in vLLM's
own scheduler. A call takes ``TOKEN_S`` for each output token. Its metrics are vLLM's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from processes import free_port

MODEL = "scripted"
TOKEN_S = 0.02
BLOCK_TOKENS = 16


class SlottedWorker:
    """The process, at a port that it keeps when it is started again."""

    def __init__(self, *, slots, kv_blocks):
        self._port = free_port()
        self._sizes = (slots, kv_blocks)
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self):
        arguments = map(str, (self._port, *self._sizes))
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout.readline(), "the worker ended"

    def kill(self):
        """End the process, if it runs."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def serve(port, slots, kv_blocks):
    """Serve until the standard input ends."""
    from aiohttp import web
    from scripted_worker import ScriptedWorker

    class Worker(ScriptedWorker):
        def __init__(self):
            self.running = self.used_blocks = 0
            self.first, self.freed = asyncio.Lock(), asyncio.Event()
            super().__init__(kv_blocks, MODEL, port=port)

        async def _stream(self, word, said, held, request, response):
            body = await request.json()
            tokens = body["max_tokens"]
            blocks = -(-(len(json.dumps(body["messages"])) // 4 + tokens) // BLOCK_TOKENS)
            self.waiting += 1
            try:
                async with self.first:
                    while self.running >= slots or self.used_blocks + blocks > kv_blocks:
                        self.freed.clear()
                        await self.freed.wait()
                    self.running += 1
                    self.used_blocks += blocks
            finally:
                self.waiting -= 1
            try:
                await response.begin()
                await self._send(response, {"role": "assistant", "content": ""}, 0)
                await asyncio.sleep(tokens * TOKEN_S)
                await self._send(response, {"content": "word " * tokens}, tokens, "length")
                await self._send(response, None, tokens)
                await response.write(b"data: [DONE]\n\n")
            finally:
                self.running -= 1
                self.used_blocks -= blocks
                self.freed.set()

        async def _metrics(self, request):
            labels = f'block_size="{BLOCK_TOKENS}",num_gpu_blocks="{kv_blocks}"'
            return web.Response(
                text=f"vllm:cache_config_info{{{labels}}} 1\n"
                f"vllm:num_requests_running {self.running}\n"
                f"vllm:num_requests_waiting {self.waiting}\n"
                f"vllm:kv_cache_usage_perc {self.used_blocks / kv_blocks}\n"
            )

    Worker()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    serve(*map(int, sys.argv[1:]))
