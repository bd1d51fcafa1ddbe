"""The interface of a benchmark to an engine: requests, times of their tokens, times of steps.

This file needs no torch, so that a command can parse its arguments before torch is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class UnavailableError(Exception):
    """An engine cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that all engines get."""

    kv_tokens: int
    """Tokens of the KV cache, if an engine has one of a fixed size."""
    max_batch: int
    """Most sequences that run at once."""
    token_budget: int
    """Most tokens of one forward pass, if an engine mixes prefills and decodes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the number of tokens to generate from it, greedily."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a list of requests that start together."""

    wall_s: float
    """Seconds from the first request to the last token."""
    first_token_s: tuple[float, ...]
    """Seconds from that beginning to the first token of each request."""
    outputs: tuple[tuple[int, ...], ...]
    """Token ids of each request."""

    def tokens_per_s(self, requests: Sequence[Request]) -> float:
        """Return the requested tokens over the wall time, prefill included, padding not counted."""
        return sum(request.output_tokens for request in requests) / self.wall_s


PARTS = ("schedule", "prepare", "forward", "sample", "publish")
"""Parts of a step of our engine, in order."""


@dataclass(frozen=True, slots=True)
class PassLoad:
    """The load of one forward pass of our engine, as cost models count it."""

    prefill_tokens: int
    prefill_pairs: float
    """Pairs of a prefilled token and one that it attends to."""
    sequences: int
    """Sequences that decode."""
    held_tokens: int
    """Tokens in the KV cache of these sequences, their new ones included."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The seconds of each part of one step of our engine, and its load."""

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

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Run all requests to their end. Raises UnavailableError if the engine cannot."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...
