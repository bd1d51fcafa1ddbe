"""Events of the engine's sequences, in order for each one: ``Admitted`` once, then ``Generated`` per
step, the last one with a finish reason; or ``Failed``.

A cancelled sequence emits no further event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairserve.engine.torch.logprobs import TokenLogprobs

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The sequence left the queue: its prefill begins with this step."""

    sequence_id: str
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens were generated. ``text`` may lag behind them (half a character, half a stop)."""

    sequence_id: str
    text: str
    tokens: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None
    """Log probabilities of the token, if requested; also of a stop token, and of one that is cut off."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The sequence ended by an error of its own, or of the engine."""

    sequence_id: str
    message: str
    handed_back: bool = False
    """True if it never ran, so that another worker may take it."""
    rejected: bool = False
    """True if the request cannot be served: every worker would fail with it."""


EngineEvent = Admitted | Generated | Failed
