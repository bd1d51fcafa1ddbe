"""Options of an engine. Does not import torch, so that wrong flags are reported quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fairserve.engine.torch.page_pool import PAGE_TOKENS

Preemption = Literal["fair", "latest", "never"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The sizes of one engine."""

    kv_tokens: int
    """Size of the KV cache in tokens, rounded down to pages."""
    max_batch: int = 32
    """Maximum number of concurrently running sequences."""
    token_budget: int = 512
    """Maximum tokens of one forward pass, decodes and prefill chunks together."""
    preemption: Preemption = "fair"
    """Choice of the victim when a decode finds no page."""
    cuda_graphs: bool = True
    """Record decode-only steps as graphs on a GPU."""
    overlap: bool | None = None
    """Launch a step before the host knows the tokens of the previous one; None: on a GPU. A
    sequence that ends by its text or an end token is then computed for one extra step."""
    spare_share: float = 0.01
    """Share of the KV cache that must be left at an admission while others run, so that they can
    grow for a while. Unused with ``never``."""

    def __post_init__(self) -> None:
        if self.kv_tokens < PAGE_TOKENS:
            raise ValueError(f"kv_tokens is {self.kv_tokens}; at least {PAGE_TOKENS} are needed")
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; it must be at least 1")
        if self.token_budget < self.max_batch:
            raise ValueError(
                f"token_budget is {self.token_budget}; a step must have room for one token of "
                f"each of the {self.max_batch} running sequences"
            )
        if self.preemption not in get_args(Preemption):
            raise ValueError(
                f"preemption is {self.preemption!r}; allowed: {', '.join(get_args(Preemption))}"
            )
        if not 0 <= self.spare_share < 1:
            raise ValueError(f"spare_share is {self.spare_share}; allowed: 0 to less than 1")
