"""Cost functions: how much service a call has received (ALGORITHMS section 1).

VTC 3.1 and 4.2 (linear), B.2 (profiled); DLPM section 3 (extend); FairServe 4.3 (weighted slice).
Every cost maps a :class:`TokenUsage` to a number that grows with it, so any of them is charged
incrementally: ``cost(new) - cost(old)``, token by token, at admission, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profile import AppProfile

Cost = Callable[[TokenUsage], float]


@dataclass(frozen=True, slots=True)
class Linear:
    """``wp * prompt + wq * output``; cached tokens count in full."""

    wp: float = 1.0
    wq: float = 2.0

    def __call__(self, usage: TokenUsage) -> float:
        """Service of a usage."""
        return self.wp * usage.prompt_tokens + self.wq * usage.output_tokens


@dataclass(frozen=True, slots=True)
class Profiled:
    """VTC B.2: fitted to the time a request takes, quadratic in the output."""

    def __call__(self, usage: TokenUsage) -> float:
        """Service of a usage; nothing used costs nothing."""
        prompt, output = usage.prompt_tokens, usage.output_tokens
        if prompt == 0 and output == 0:
            return 0.0
        return 2.1 * prompt + output + 0.04 * prompt * output + 0.032 * output**2 + 11.46


@dataclass(frozen=True, slots=True)
class Extend:
    """``we * extend + wq * output``: a prefix is charged once, when it is computed."""

    we: float = 1.0
    wq: float = 2.0

    def __call__(self, usage: TokenUsage) -> float:
        """Service of a usage."""
        return self.we * usage.extend_tokens + self.wq * usage.output_tokens


@dataclass(frozen=True, slots=True)
class SliceWeights:
    """alpha, beta, gamma of FairServe 4.3: weights of input, system and output tokens."""

    alpha: float = 1.0
    beta: float = 2.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if min(self.alpha, self.beta, self.gamma) < 0 or self.alpha + self.gamma <= 0:
            raise ValueError(
                f"slice weights are {self.alpha}, {self.beta}, {self.gamma}; "
                "allowed: none negative, alpha + gamma over 0"
            )

    def slice(self, usage: TokenUsage, *, charge_cached: bool) -> float:
        """Weighted tokens."""
        prompt = self.prompt_slice(usage, charge_cached=charge_cached)
        return prompt + self.gamma * usage.output_tokens

    def prompt_slice(self, usage: TokenUsage, *, charge_cached: bool) -> float:
        """Those of the prompt. Cached tokens are the system tokens first: they lead it."""
        text, system, cached, _ = usage
        if not charge_cached and cached:
            text -= min(text, max(0, cached - system))
            system = max(0, system - cached)
        return self.alpha * text + self.beta * system

    def typical_call(self, profile: AppProfile, stage: int) -> float:
        """w_aj: the slice of a call of exactly the expected size at stage ``stage``, as far as it is
        believed.
        """
        expected = profile.stage(stage)
        typical = (
            self.alpha * expected.input_tokens
            + self.beta * expected.system_tokens
            + self.gamma * expected.output_tokens
        )
        return profile.believed(stage, typical)

    def typical_interaction(self, profile: AppProfile) -> float:
        """The slice of a whole interaction of the expected size."""
        stages = range(1, len(profile.stages) + 1)
        mean = sum(self.typical_call(profile, stage) for stage in stages) / len(profile.stages)
        return mean * profile.calls_per_interaction
