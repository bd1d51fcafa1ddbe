"""How the tokens of one sequence are chosen and when it ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one sequence, checked at construction (ValueError names what is allowed)."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int | None = None
    """None draws one; equal seeds give equal outputs, whatever else is in the batch."""
    stop: tuple[str, ...] = ()
    """The output ends before the first of these; they are not part of it."""
    stop_token_ids: frozenset[int] = frozenset()
    """Further tokens that end the output as the end token does."""
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature is {self.temperature}; it must lie in [0, 100]")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must lie in (0, 1]")
        if any(not text for text in self.stop):
            raise ValueError("a stop string must not be empty")
