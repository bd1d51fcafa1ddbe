"""A worker process whose prompts are numbers of tokens, and which writes down what it generates.

``python counting_worker.py PORT FILE``. What is written outlives the process, however it ends.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import httpx
from processes import eventually, free_port
from scripted_worker import ScriptedWorker

TOKEN_S = 0.1


class CountingWorker(ScriptedWorker):
    """Generates as many tokens as the prompt's first word says, and counts them for each call id."""

    def __init__(self, port, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        super().__init__(port=port)

    async def _stream(self, word, said, held, request, response):
        call_id, tokens = request.headers["x-request-id"], int(word)
        self._write("began", call_id, 0)
        await response.begin()
        for count in range(1, tokens + 1):
            await asyncio.sleep(TOKEN_S)
            await self._send(response, {"content": "x "}, count)
        await self._send(response, {}, tokens, finish_reason="stop")
        await self._send(response, None, tokens)
        self._write("ended", call_id, tokens)
        await response.write(b"data: [DONE]\n\n")

    def _write(self, step, call_id, tokens):
        os.write(self._file, f"{step} {call_id} {tokens}\n".encode())


class WorkerProcess:
    """A counting worker in a process of its own, which keeps its port when it is started again."""

    def __init__(self, path):
        self._path, self._port = path, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.launch()
        eventually(self._ready, "the worker does not start")

    def launch(self):
        command = [sys.executable, __file__, str(self._port), str(self._path)]
        self.process = subprocess.Popen(command, start_new_session=True)

    def runs(self):
        return self.process.poll() is None

    def _ready(self):
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def counts(self):
        """Return how often each call began here, and the tokens of those that ended."""
        began, ended = Counter(), {}
        for line in self._path.read_text().splitlines():
            step, call_id, tokens = line.split()
            if step == "began":
                began[call_id] += 1
            else:
                ended[call_id] = int(tokens)
        return began, ended

    def close(self):
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    CountingWorker(int(sys.argv[1]), sys.argv[2])
    signal.pause()
