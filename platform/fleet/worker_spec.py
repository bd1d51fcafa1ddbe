"""An operator's settings of a worker: its address, and facts that it does not report itself."""

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
    """Model that it must serve, by its name there; empty for the first that it reports."""
    kv_events: KvEndpoints | None = None
    """Address at which it publishes KV events, if it does not report it itself."""
    kv_tokens: int | None = None
    """Size of its KV cache in tokens, if it does not report it."""
    concurrency: int = 16
    """Calls that an ``openai`` worker gets at a time; the others wait in the local queue."""
    api_key_env: str = ""
    """Name of the environment variable with the bearer token that it asks for; empty: none."""
