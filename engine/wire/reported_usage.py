"""The token counts in a worker's ``usage`` that its call can have used.

A worker is not trusted: every reader of an answer gets its counts from :func:`read_usage`. A count is a
whole number, not negative, and at most what its call can have used. Anything else (a text, a float, a
boolean, null, a number beyond the bound) counts as absent, alone: the other counts of the same object
remain. What follows for an absent count is the reader's decision
(:mod:`fairserve.platform.serving.completions.usage`).

Weakness: a number that is too small is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

MAX_TOKENS = 1 << 27
"""Longest context that is believed, in tokens; the prompt and each sample of a call have at most this
many."""
PROMPT_TOLERANCE_TOKENS = 256
"""Tokens by which a worker's count of a prompt may exceed the platform's, besides the share: templates
and special tokens."""
EXACT_PROMPT_SHARE = 1 / 4
"""Share of the platform's count that a worker's may have on top, where the model's tokenizer counted."""
BYTES_PER_ESTIMATED_TOKEN = 4
"""Bytes that the estimate of a prompt takes for a token; a token has one byte or more."""

_PROMPT_DETAILS = ("audio_tokens", "created_cache_tokens")
"""Parts of the prompt besides the cached ones, by the names of OpenAI and vLLM."""
_MODALITIES = ("image", "audio", "video")
"""Parts of vLLM's ``multimodal_tokens``."""
_OUTPUT_DETAILS = (
    "reasoning_tokens",
    "audio_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)


@dataclass(frozen=True, slots=True)
class UsageBounds:
    """Largest counts that a call can have."""

    prompt_tokens: int = MAX_TOKENS
    output_tokens: int = MAX_TOKENS
    """The maximum output of all samples."""


def prompt_bound(
    counted_tokens: int, context_tokens: int | None, *, exact: bool, complete: bool
) -> int:
    """Return the largest count of a prompt that is believed, for one that the platform counted.

    ``exact``: the model's tokenizer counted. ``complete``: nothing was left out of the count, such as
    images, which may fill the context. ``context_tokens`` is None if the prompt need not fit one.
    """
    most = MAX_TOKENS if context_tokens is None else min(context_tokens, MAX_TOKENS)
    if not complete:
        return max(most, counted_tokens)
    more = counted_tokens * EXACT_PROMPT_SHARE
    if not exact:
        more = counted_tokens * (BYTES_PER_ESTIMATED_TOKEN - 1)
    return max(counted_tokens, min(most, counted_tokens + int(more) + PROMPT_TOLERANCE_TOKENS))


class ReportedUsage(NamedTuple):
    """The usable counts of one ``usage`` object; None: absent, or not usable."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt that were in the cache: at most the prompt's."""
    output_tokens: int | None = None
    prompt_details: Mapping[str, int | Mapping[str, int]] = MappingProxyType({})
    """Other parts of the prompt, each at most the prompt."""
    output_details: Mapping[str, int] = MappingProxyType({})
    """Parts of the output by OpenAI's names, each at most the output."""


NOTHING_REPORTED = ReportedUsage()


def read_usage(usage: Any, bounds: UsageBounds) -> ReportedUsage:
    """Return the counts of a worker's ``usage``, which may be anything. O(1)."""
    if not isinstance(usage, dict) or not usage:
        return NOTHING_REPORTED
    given = usage.get("prompt_tokens")
    output = count_of(usage.get("completion_tokens"), bounds.output_tokens)
    # A prompt has tokens: 0 stands for a count that the server does not have.
    prompt = count_of(given, bounds.prompt_tokens) or None
    if not given and (output is not None or "completion_tokens" not in usage):
        # Some servers report no other count than the total.
        total = count_of(usage.get("total_tokens"), bounds.prompt_tokens + (output or 0))
        prompt = None if total is None or total <= (output or 0) else total - (output or 0)
    cached, prompt_parts = None, {}
    details = usage.get("prompt_tokens_details")
    if prompt is not None and isinstance(details, dict):
        cached = count_of(details.get("cached_tokens"), prompt)
        prompt_parts = _prompt_parts(details, prompt)
    details = usage.get("completion_tokens_details")
    parts = {}
    if output is not None and isinstance(details, dict):
        parts = _parts(details, _OUTPUT_DETAILS, output)
    return ReportedUsage(prompt, cached, output, prompt_parts, parts)


def _prompt_parts(details: dict[str, Any], most: int) -> dict[str, int | Mapping[str, int]]:
    parts: dict[str, int | Mapping[str, int]] = {**_parts(details, _PROMPT_DETAILS, most)}
    media = details.get("multimodal_tokens")
    if isinstance(media, dict):
        parts["multimodal_tokens"] = _parts(media, _MODALITIES, most)
    return parts


def _parts(details: dict[str, Any], names: tuple[str, ...], most: int) -> dict[str, int]:
    counts = {name: count_of(details.get(name), most) for name in names}
    return {name: count for name, count in counts.items() if count is not None}


def count_of(value: Any, most: int) -> int | None:
    """Return a count of a worker's, which may be anything; None if it is not usable."""
    # A boolean is an int, too.
    return value if type(value) is int and 0 <= value <= most else None
