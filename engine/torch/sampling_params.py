"""Options for choosing a sequence's tokens and its end. Names and ranges are vLLM's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairserve.engine.torch.bad_words import BadWords
from fairserve.engine.torch.token_constraint import Grammar

GREEDY_TEMPERATURE = 1e-5
"""Temperature below which the most likely token is taken; dividing by less would overflow."""
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY = 0.01
"""Divisor of a logit whose quotient is a finite float32, also after the lowest temperature."""
MAX_REPETITION_PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one sequence, checked at construction (ValueError names the allowed range)."""

    max_tokens: int
    temperature: float = 1.0
    """Temperature; 0 is greedy."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach this sum."""
    top_k: int = 0
    """Keep this many of the most likely tokens; 0 and -1 keep all. 1 is greedy."""
    min_p: float = 0.0
    """Keep the tokens with at least this share of the highest probability."""
    presence_penalty: float = 0.0
    """Amount subtracted once from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Amount subtracted from the logit of a token for each occurrence in the output."""
    repetition_penalty: float = 1.0
    """Divisor of the positive logits of every token in prompt or output, factor of the others."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Amounts added to the logits of these tokens."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens of the output, each once; empty: all."""
    bad_words: BadWords | None = None
    """Words that the output may not contain."""
    seed: int | None = None
    """Seed; None draws one. Equal seeds give equal outputs, whatever else is in the batch."""
    stop: tuple[str, ...] = ()
    """Strings at which the output ends, before the first one found."""
    stop_token_ids: frozenset[int] = frozenset()
    """Further tokens that end the output like the end token."""
    include_stop: bool = False
    """Show the stop string or the stop token, too."""
    skip_special: bool = True
    """Show no text of special tokens."""
    spaces_between_special: bool = True
    """Allow the tokenizer's spaces between special tokens that are shown."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Minimum tokens before an end token, stop token or stop string ends the output."""
    logprobs: int | None = None
    """Number of most likely tokens to report with the log probability of each token; None: no
    report."""
    grammar: Grammar | None = None
    """Grammar of the output, such as that of a JSON schema."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        _check("temperature", self.temperature, 0, 100)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must lie in (0, 1]")
        if self.top_k < -1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1, or 0 or -1 for all")
        _check("min_p", self.min_p, 0, 1)
        _check("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check(
            "repetition_penalty",
            self.repetition_penalty,
            MIN_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
        )
        for token, bias in self.logit_bias.items():
            _check(f"logit_bias of token {token}", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if any(not text for text in self.stop):
            raise ValueError("a stop string must not be empty")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}; it must lie in [0, {self.max_tokens}], "
                "the end of which is max_tokens"
            )
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """Return whether the most likely token is always taken, so that no random number is drawn."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def adjusts_logits(self) -> bool:
        """Return whether some logits are adjusted."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repeats_matter
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_words
            or self.min_tokens
        )

    @property
    def repeats_matter(self) -> bool:
        """Return whether tokens of prompt and output are penalised for their repetition."""
        return self.repetition_penalty != 1


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} is {value}; it must lie in [{low:g}, {high:g}]")
