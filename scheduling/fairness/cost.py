"""Cost functions: the service of a token usage (ALGORITHMS section 1).

VTC 3.1 and 4.2 (linear), B.2 (profiled); DLPM section 3 (extend); FairServe 4.3 (weighted slice).
Every cost maps a :class:`TokenUsage` to a number that increases with it, so each can be charged
incrementally as ``cost(new) - cost(old)``: per token, at admission, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile

Cost = Callable[[TokenUsage], float]


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear cost ``wp * prompt + wq * output``; cached tokens count in full."""

    wp: float = 1.0
    wq: float = 2.0

    def __call__(self, usage: TokenUsage) -> float:
        """Return the service of a usage."""
        return self.wp * usage.prompt_tokens + self.wq * usage.output_tokens


@dataclass(frozen=True, slots=True)
class Profiled:
    """VTC B.2: fitted to the processing time of a request, quadratic in the output."""

    def __call__(self, usage: TokenUsage) -> float:
        """Return the service of a usage; 0 for no usage."""
        prompt, output = usage.prompt_tokens, usage.output_tokens
        if prompt == 0 and output == 0:
            return 0.0
        return 2.1 * prompt + output + 0.04 * prompt * output + 0.032 * output**2 + 11.46


@dataclass(frozen=True, slots=True)
class Extend:
    """Extend cost ``we * extend + wq * output``: a prefix is charged once, when it is computed."""

    we: float = 1.0
    wq: float = 2.0

    def __call__(self, usage: TokenUsage) -> float:
        """Return the service of a usage."""
        return self.we * usage.extend_tokens + self.wq * usage.output_tokens


@dataclass(frozen=True, slots=True)
class SliceWeights:
    """Weights alpha, beta, gamma of FairServe 4.3 for input, system and output tokens."""

    alpha: float = 1.0
    beta: float = 2.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if min(self.alpha, self.beta, self.gamma) < 0 or self.alpha + self.gamma <= 0:
            raise ValueError(
                f"slice weights are {self.alpha}, {self.beta}, {self.gamma}; "
                "allowed: none negative, alpha + gamma over 0"
            )

    def slice(self, usage: TokenUsage, cached_weight: float = 1.0) -> float:
        """Return the weighted tokens; cached ones are multiplied by ``cached_weight``, 0 to 1."""
        text, system, cached, output, _ = usage
        return self.prompt_slice(text, system, cached, cached_weight) + self.gamma * output

    def prompt_slice(
        self, text: float, system: float, cached: float, cached_weight: float
    ) -> float:
        """Return the weighted tokens of a prompt; system tokens, which lead it, are cached first."""
        whole = self.alpha * text + self.beta * system
        if cached_weight == 1.0 or not cached:
            return whole
        cached_system = min(system, cached)
        cached_text = min(text, cached - cached_system)
        saved = self.alpha * cached_text + self.beta * cached_system
        return whole - (1.0 - cached_weight) * saved

    def typical_call(self, profile: AppProfile, stage: int, cached_weight: float = 1.0) -> float:
        """Return w_aj: the slice of a call of exactly the expected size at stage ``stage``.

        It is the same function of a call as :meth:`slice`; otherwise an app could choose between
        two measures of its calls. Where no call has shown a cached share, the prompt counts as
        cached: a client that declares otherwise would be charged less than its weight.
        """
        expected = profile.stage(stage)
        text, system = expected.input_tokens, expected.system_tokens
        seen = stage <= profile.seen_stages
        cached = expected.cached_tokens if seen else text + system
        prompt = self.prompt_slice(text, system, cached, cached_weight)
        return profile.believed(stage, prompt + self.gamma * expected.output_tokens)

    def typical_interaction(self, profile: AppProfile, cached_weight: float = 1.0) -> float:
        """Return the slice of an interaction of the expected size."""
        stages = range(1, len(profile.stages) + 1)
        total = sum(self.typical_call(profile, stage, cached_weight) for stage in stages)
        return total / len(profile.stages) * profile.calls_per_interaction


def check_cached_weight(cached_weight: float, charge_cached: bool | None) -> float:
    """Return the weight in force; the alias ``charge_cached`` overrides it with 1 or 0.

    Raises ValueError for a weight out of range.
    """
    if not 0 <= cached_weight <= 1:
        raise ValueError(f"cached_weight is {cached_weight}; allowed: 0 to 1")
    return cached_weight if charge_cached is None else float(charge_cached)
