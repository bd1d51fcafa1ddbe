"""The model that the workers serve, as clients see it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fairserve.platform.completions.prompt import PromptReader


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. ``names[0]`` is the name that ``/v1/models`` tells."""

    names: tuple[str, ...]
    worker_name: str
    """What the workers call it."""
    context_tokens: int
    """Prompt and output together, within the KV cache of the smallest worker."""
    reader: PromptReader
    created: int = field(default_factory=lambda: int(time.time()))

    def listing(self) -> dict[str, Any]:
        """The entry of ``/v1/models``."""
        return {
            "id": self.names[0],
            "object": "model",
            "created": self.created,
            "owned_by": "fairserve",
            "max_model_len": self.context_tokens,
        }
