"""Events of the engine's sequences, in order per sequence.

A sequence emits ``Admitted`` once, then ``Generated`` per step, the last one with a finish reason;
or ``Failed``. A cancelled sequence emits no further event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairserve.engine.torch.logprobs import TokenLogprobs

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence left the queue: its prefill begins with this step."""

    sequence_id: str
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens were generated. ``text`` may lag behind (partial characters, partial stop strings)."""

    sequence_id: str
    text: str
    tokens: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None
    """Log probabilities of the token, if requested; also of stop tokens and of tokens cut off."""
    stop_reason: int | str | None = None
    """The stop token or the stop string of the request that ended the output."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A sequence ended by its own error, or by an error of the engine."""

    sequence_id: str
    message: str
    handed_back: bool = False
    """True if it never ran, so that another worker can run it."""
    rejected: bool = False
    """True if the request cannot be served by any worker."""


EngineEvent = Admitted | Generated | Failed
