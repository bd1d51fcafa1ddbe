"""Interface between a benchmark and an engine: requests, token times, step times.

This module does not import torch, so that a command can parse its arguments first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class RunnerUnavailableError(Exception):
    """An engine cannot run here; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Size limits of all engines."""

    kv_tokens: int
    """Tokens of the KV cache, for engines with one of a fixed size."""
    max_batch: int
    """Maximum number of concurrently running sequences."""
    token_budget: int
    """Maximum tokens of one forward pass, for engines that mix prefills and decodes."""


@dataclass(frozen=True, slots=True)
class RunnerRequest:
    """A prompt, and the number of tokens to generate from it, greedily."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RunnerOutcome:
    """Outcome of a list of requests that start together."""

    wall_s: float
    """Seconds from the first request to the last token."""
    first_token_s: tuple[float, ...]
    """Seconds from the start to the first token of each request."""
    outputs: tuple[tuple[int, ...], ...]
    """Token ids of each request."""

    def tokens_per_s(self, requests: Sequence[RunnerRequest]) -> float:
        """Return the requested tokens over the wall time, prefill included, padding not counted."""
        return sum(request.output_tokens for request in requests) / self.wall_s


PARTS = ("schedule", "prepare", "forward", "sample", "publish")
"""Parts of a step of our engine, in order."""


@dataclass(frozen=True, slots=True)
class PassLoad:
    """The load of one forward pass of our engine, as cost models count it."""

    prefill_tokens: int
    prefill_pairs: float
    """Number of pairs of a prefilled token and a token that it attends to."""
    sequences: int
    """Number of decoding sequences."""
    held_tokens: int
    """Tokens in the KV cache of these sequences, new ones included."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Seconds of each part of one step of our engine, and its load."""

    load: PassLoad
    parts_s: tuple[float, ...]
    """Seconds in the order of ``PARTS``."""

    @property
    def total_s(self) -> float:
        """Return the seconds of the whole step."""
        return sum(self.parts_s)


class Runner(Protocol):
    """An engine with its memory, ready to run."""

    name: str

    def run(self, requests: Sequence[RunnerRequest]) -> RunnerOutcome:
        """Run all requests to their end. Raises UnavailableError if the engine cannot."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...
