"""Options of Preble, and its model of prefill times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrebleOptions:
    """Options of Preble; times in seconds, outputs in tokens.

    The prefill time of n own tokens that end at context c is
    ``prefill_s + prefill_token_s * n + prefill_context_s * c + prefill_product_s * n * c``; the
    values are the published fit.
    """

    exploit_share: float = 0.5
    window_s: float = 180.0
    window_calls: int = 10_000
    """Maximum number of calls in the window."""
    token_s: float = 0.15
    medians_of: int = 200
    output_tokens: float = 45.0
    rebalance_after: int = 50
    """Number of calls per worker before the first rebalancing."""
    rebalance_ratio: float | None = 1.5
    """Ratio of loads at which nodes move; None never rebalances."""
    eviction: bool = True
    prefill_s: float = 0.0289
    prefill_token_s: float = 1.822e-4
    prefill_context_s: float = 4.004e-6
    prefill_product_s: float = 2.551e-9

    def __post_init__(self) -> None:
        if not 0 <= self.exploit_share <= 1:
            raise ValueError(f"exploit_share is {self.exploit_share}; allowed: 0 to 1")
        for name in ("window_s", "window_calls", "token_s", "medians_of", "output_tokens"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} is {value}; allowed: over 0")
        if self.rebalance_after < 0:
            raise ValueError(f"rebalance_after is {self.rebalance_after}; allowed: 0 or more")
        if self.rebalance_ratio is not None and not self.rebalance_ratio >= 1:
            raise ValueError(
                f"rebalance_ratio is {self.rebalance_ratio}; allowed: 1 or more, or null"
            )
        for name in ("prefill_s", "prefill_token_s", "prefill_context_s", "prefill_product_s"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} is {value}; allowed: 0 or more")

    def prefill_ns(self, own_tokens: int, context_tokens: int) -> float:
        """Return the nanoseconds to compute this many tokens at the end of such a context."""
        return 1e9 * (
            self.prefill_s
            + self.prefill_token_s * own_tokens
            + self.prefill_context_s * context_tokens
            + self.prefill_product_s * own_tokens * context_tokens
        )
