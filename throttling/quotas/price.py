"""Price of a call's tokens, in whole nanounits of the deployment's currency."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.interactions.call import ServiceTier, TokenUsage
from fairserve.throttling.quotas.quota import MAX_AMOUNT


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices per million tokens in micro-units of the currency; one token costs whole picounits."""

    input: int
    """Price of a computed prompt token, system prompts included."""
    cached: int
    """Price of a prompt token that was found in the cache."""
    output: int
    price_id: str = ""
    """Id of the price; empty: there is none."""
    flex_multiplier: float = 1.0
    """Factor on all prices for calls of the tier ``flex``."""
    priority_multiplier: float = 1.0
    reasoning: int | None = None
    """Price of an output token that the worker reports as reasoning; None: that of ``output``."""

    def of_tier(self, tier: ServiceTier) -> TokenPrice:
        """Return the price of a tier's calls, in whole micro-units; halves are rounded up."""
        factor = {"flex": self.flex_multiplier, "priority": self.priority_multiplier}.get(tier, 1.0)
        if factor == 1.0:
            return self
        prompt, cached, output, reasoning = (
            int(each * factor + 0.5)
            for each in (self.input, self.cached, self.output, self._reasoning)
        )
        return TokenPrice(prompt, cached, output, self.price_id, reasoning=reasoning)

    def cost(self, usage: TokenUsage) -> int:
        """Return the cost of a usage in nanounits, at most ``MAX_AMOUNT``; halves are rounded up."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        reasoning = min(usage.reasoning_tokens, usage.output_tokens)
        pico = (usage.prompt_tokens - cached) * self.input + cached * self.cached
        pico += (usage.output_tokens - reasoning) * self.output + reasoning * self._reasoning
        return min(_nano(pico), MAX_AMOUNT)

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """Return the maximum cost of a call with this prompt and at most this output, in nanounits."""
        dearest = max(self.input, self.cached)
        return _nano(prompt_tokens * dearest + output_tokens * max(self.output, self._reasoning))

    @property
    def _reasoning(self) -> int:
        return self.output if self.reasoning is None else self.reasoning


def _nano(pico: int) -> int:
    return (pico + 500) // 1000


FREE = TokenPrice(0, 0, 0)
