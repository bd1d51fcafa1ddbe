"""What an operator says of a worker: where it is, and what a worker does not tell itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairserve.engine.wire.base import KvEndpoints

WorkerKind = Literal["vllm", "openai"]
"""``vllm`` speaks vLLM's dialect, as our torch worker does, and has a fair queue of its own; ``openai``
is any other OpenAI-compatible server, in front of which a local queue stands."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker. Ids are unique in a deployment."""

    worker_id: str
    url: str
    """Base URL without a trailing slash or ``/v1``."""
    kind: WorkerKind = "vllm"
    model: str = ""
    """The model that it must serve, by its name there; empty: the first that it tells."""
    kv_events: KvEndpoints | None = None
    """Where it publishes KV events, if it does not say so itself."""
    kv_tokens: int | None = None
    """Size of its KV cache, if it does not tell it."""
    concurrency: int = 16
    """Calls that an ``openai`` worker gets at a time; the others wait in the local queue."""
    api_key_env: str = ""
    """Name of the environment variable with the bearer token that it asks for; empty: none."""
