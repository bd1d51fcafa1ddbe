"""A real worker process, with clients for it."""

import contextlib
import http.client
import json
import re
import subprocess
import sys

import httpx
import openai
from processes import eventually

COMMAND = (sys.executable, "-m", "fairserve.platform.server.cli", "worker")
MODEL = "fairserve-tiny-random"
"""Model of a worker without another one: its outputs reach their limit."""
DEADLINE_S = 60
UNDER_A_SHELL = ("sh", "-c", '"$@" <&- & read -r _', "sh")
"""Command prefix: the worker is the child of a shell that waits for its input."""


class Worker:
    """A worker process that is ready."""

    def __init__(self, *flags, prefix=()):
        if "--model" not in flags:
            flags = ("--model", MODEL, *flags)
        command = [*COMMAND, "--device", "cpu", "--exit-with-parent", *flags]
        self.process = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait()}"
        self.ready = json.loads(line)
        self.url = f"http://127.0.0.1:{self.ready['port']}"
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S
        )

    @contextlib.contextmanager
    def asking(self, path, body):
        """Return a connection with a sent request; its client disconnects without an answer."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.ready["port"], timeout=DEADLINE_S
        )  # fmt: skip
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            yield connection

    def metric(self, name):
        return self.metric_of(f"vllm:{name}")

    def metric_of(self, name):
        text = self.http.get("/metrics").text
        (value,) = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return float(value)

    def wait_for(self, condition):
        eventually(condition, deadline_s=DEADLINE_S)

    def wait_until_idle(self):
        self.wait_for(
            lambda: self.metric("num_requests_running") == self.metric("num_requests_waiting") == 0
        )

    def stop(self):
        self.http.close()
        self.openai.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextlib.contextmanager
def running(*flags, prefix=()):
    worker = Worker(*flags, prefix=prefix)
    try:
        yield worker
    finally:
        worker.stop()
