"""What a benchmark asks of an engine: some requests at once, when their tokens came, what steps took.

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
    """Sizes that all engines are given alike."""

    kv_tokens: int
    """Of the KV cache, where an engine has one of a fixed size."""
    max_batch: int
    """Sequences that run at once."""
    token_budget: int
    """Tokens of one forward pass, where an engine mixes prefills and decodes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how many tokens are to be generated from it: greedily, whatever they are."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a list of requests that were handed over together."""

    wall_s: float
    """From handing over the first request until the last token was there."""
    first_token_s: tuple[float, ...]
    """Of each request, from the same beginning."""
    outputs: tuple[tuple[int, ...], ...]
    """Token ids of each request."""

    def tokens_per_s(self, requests: Sequence[Request]) -> float:
        """Tokens that were asked for, over the wall time: prefill is in the time, padding nowhere."""
        return sum(request.output_tokens for request in requests) / self.wall_s


PARTS = ("schedule", "prepare", "forward", "sample", "publish")
"""Of a step of our engine, in their order."""


@dataclass(frozen=True, slots=True)
class PassLoad:
    """What one forward pass of our engine computes, as cost models count it."""

    prefill_tokens: int
    prefill_pairs: float
    """Of a prefilled token and one that it attends to."""
    sequences: int
    """That decode."""
    held_tokens: int
    """In the KV cache of these sequences, their new tokens included."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Seconds of each part of one step of our engine, and what it computed."""

    load: PassLoad
    parts_s: tuple[float, ...]
    """In the order of ``PARTS``."""

    @property
    def total_s(self) -> float:
        """All of the step."""
        return sum(self.parts_s)


class Runner(Protocol):
    """One engine with its memory, ready to run."""

    name: str

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Run all requests to their end. Raises UnavailableError if the engine cannot."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...
