"""What the engine tells about its sequences, in the order in which it happens to each:
``Admitted`` once, then ``Generated`` per step, the last one with a finish reason; or ``Failed``.

A cancelled sequence tells nothing more.
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
    """Of the token, where they were asked for; also of a stop token, and of one that is cut off."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The sequence ended by an error of its own, or of the engine."""

    sequence_id: str
    message: str
    handed_back: bool = False
    """It never ran, and another worker may take it."""
    rejected: bool = False
    """The request asks for what cannot be done: every worker would fail with it."""


EngineEvent = Admitted | Generated | Failed
