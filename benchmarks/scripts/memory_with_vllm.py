"""Agents beyond the memory of two vLLM servers on the CPU, the third part of the demo.

    make test-vllm                      # sets up .venv-vllm
    .venv-vllm/bin/python benchmarks/scripts/memory_with_vllm.py --seconds 60

Each server has the built-in model, the plug-in, and a KV cache of 16,384 tokens; the platform receives
its cache events. 32 sessions whose contexts are three times what both caches hold run for a fixed time
under each system (:mod:`fairserve.benchmarks.demo.memory`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path

from fairserve.benchmarks.demo.memory import compare_memory, memory_finding, memory_table
from fairserve.benchmarks.demo.progress import DemoProgress
from fairserve.benchmarks.demo.server_process import DemoServer
from fairserve.benchmarks.machine import machine
from fairserve.engine.torch.builtin_model import ensure_builtin_model

KV_TOKENS, BLOCK_TOKENS, LONGEST_TOKENS, READY_S = 16_384, 32, 8192, 300.0


class VllmWorker:
    """vLLM's API server with the plug-in and KV events, on free ports."""

    def __init__(self, model: str, folder: Path, name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        events, replay = (f"ipc://{folder}/{name}-{kind}" for kind in ("events", "replay"))
        self.spec = {"id": name, "url": self.url, "kv_events": events, "kv_replay": replay}
        """The worker of a fleet file."""
        publisher = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": events,
            "replay_endpoint": replay,
        }
        flags = {
            "model": model,
            "served-model-name": "tiny",
            "dtype": "float32",
            "max-model-len": LONGEST_TOKENS,
            "max-num-batched-tokens": LONGEST_TOKENS,
            "block-size": BLOCK_TOKENS,
            "num-gpu-blocks-override": KV_TOKENS // BLOCK_TOKENS,
            "host": "127.0.0.1",
            "port": port,
            "scheduler-cls": "fairserve.engine.vllm.scheduler.DLPMScheduler",
            "kv-events-config": json.dumps(publisher),
        }
        arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        self._log = (folder / f"{name}.log").open("wb")
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments),
                *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
                "--no-enable-chunked-prefill",  # on CPUs vLLM fails on a chunk of a call with a seed
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its engine process ends with it
            env={
                **os.environ,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
            },
        )

    def wait(self) -> None:
        """Wait until the server answers. Raises RuntimeError if it ends, or is too slow."""
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):  # noqa: S310
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        raise RuntimeError(f"vLLM did not start, see {self._log.name}")

    def stop(self) -> None:
        """Stop the server with its engine."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30.0)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each system")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args()
    model = str(ensure_builtin_model())
    folder = Path(tempfile.mkdtemp(prefix="fs-"))  # the path of a socket is limited in length
    workers = [VllmWorker(model, folder, f"w{number}") for number in range(2)]
    try:
        for worker in workers:
            worker.wait()
        fleet = {
            "workers": [worker.spec for worker in workers],
            "models": {"tiny": {"tokenizer": model}},
        }
        path = folder / "fleet.json"
        path.write_text(json.dumps(fleet))
        server = DemoServer("fairserve", ["--fleet-file", str(path)], keep_logs=False)
        figures, problems = asyncio.run(
            compare_memory(
                server, DemoProgress(sys.stderr), seed=options.seed, seconds=options.seconds
            )
        )
    finally:
        for worker in workers:
            worker.stop()
    shutil.rmtree(folder)
    print(memory_table(figures))
    print(memory_finding(figures))
    for problem in problems:
        print(f"problem: {problem}")
    if options.json:
        found = {name: asdict(each) for name, each in figures.items()}
        options.json.write_text(json.dumps({"memory": found, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
