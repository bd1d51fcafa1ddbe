"""Configuration of a worker: its address, and facts that it does not report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairserve.engine.wire.base import KvEndpoints
from fairserve.engine.wire.tasks import Task

WorkerKind = Literal["vllm", "openai"]
"""``vllm``: a server with vLLM's API and a fair local scheduler, such as the embedded worker;
``openai``: any other OpenAI-compatible server, which gets a local queue in this process."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Configuration of one worker. Ids are unique in a deployment."""

    worker_id: str
    url: str
    """Base URL without a trailing slash or ``/v1``."""
    kind: WorkerKind = "vllm"
    model: str = ""
    """Name of the model that it must serve; empty for the first that it reports."""
    kv_events: tuple[KvEndpoints, ...] = ()
    """Addresses of its KV events, if it does not report them; one for each engine that publishes."""
    kv_tokens: int | None = None
    """Size of its KV cache in tokens, if it does not report it; without a cache, its load in tokens."""
    concurrency: int = 16
    """Maximum concurrent calls of a worker with a local queue; others wait there."""
    api_key_env: str = ""
    """Name of the environment variable with its bearer token; empty for none."""
    tasks: tuple[Task, ...] = ()
    """Tasks of its model, if it does not report them; empty for those that it reports."""
