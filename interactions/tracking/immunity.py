"""Bound on the immunity of an active run to overload limits (FairServe 4.2; ALGORITHMS section 4).

Without a bound a client would put all its calls into one run that never ends. A declared profile is
only a claim, so the observed runs of an app decide: with ``p99``, immunity ends at ``factor`` times
the 99th percentile of the calls or tokens of the app's runs. Until enough runs have ended, or if
learning is off, the declared value is used, capped at :data:`MOST_CALLS` calls of at most one
context each. With ``profile``, immunity ends at ``factor`` times the expected calls or tokens,
including declared ones.

Weakness: users of an app share its percentile. A user whose long runs are a fiftieth of all raises it,
by at most the daily growth that profiles allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairserve.interactions.profiles.profile import AppProfile

MOST_CALLS = 100.0
"""Maximum calls per run that a declaration alone can claim."""


class UsualRun(NamedTuple):
    """Size of the longest run of an app that counts as usual."""

    calls: float
    tokens: float


@dataclass(frozen=True, slots=True)
class ImmunityRule:
    """Immunity up to ``factor`` times the longest usual run; ``rule`` defines that run."""

    factor: float = 2.0
    rule: Literal["p99", "profile"] = "p99"

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"immunity_factor is {self.factor}; allowed: over 0")
        if self.rule not in ("p99", "profile"):
            raise ValueError(f"immunity_rule is {self.rule!r}; allowed: p99, profile")

    def usual(self, profile: AppProfile, context_tokens: float) -> UsualRun:
        """Return the longest usual run of an app; ``context_tokens`` bounds one call. O(1)."""
        if self.rule == "profile":
            return UsualRun(profile.calls_per_interaction, profile.tokens_per_interaction)
        if profile.p99_calls is not None and profile.p99_tokens is not None:
            return UsualRun(profile.p99_calls, profile.p99_tokens)
        calls = min(profile.calls_per_interaction, MOST_CALLS)
        of_call = profile.tokens_per_interaction / profile.calls_per_interaction
        return UsualRun(calls, calls * min(of_call, context_tokens))

    def holds(self, calls: int, tokens: int, profile: AppProfile, context_tokens: float) -> bool:
        """Return whether a run with this many accepted calls is immune; ``tokens`` were used so far."""
        if not calls:
            return False
        usual = self.usual(profile, context_tokens)
        return calls < self.factor * usual.calls and tokens <= self.factor * usual.tokens
