"""Reads a worker's usage from its chunks: what the counters and the ledger are told.

The embedded engine tells all samples together in every chunk; vLLM tells each choice apart, so that
for ``n`` over 1 the running number is a lower bound until the last chunk, which has the truth.
"""

from __future__ import annotations

from typing import Any

from fairserve.interactions.call import NO_USAGE, TokenUsage


class UsageMeter:
    """Usage of one attempt. Numbers only grow."""

    def __init__(self, prompt_tokens: int, system_tokens: int) -> None:
        """Both as counted here; the worker's own count replaces the first."""
        self._prompt_tokens = prompt_tokens
        self._system_tokens = system_tokens
        self._cached_tokens = 0
        self._output_tokens = 0
        self._guessed_tokens = 0
        self.started = False
        """Whether the worker has begun with the prompt."""
        self.cached_told = False
        self.told: dict[str, Any] | None = None
        """The last usage object of the worker."""

    def read(self, chunk: dict[str, Any]) -> None:
        """Take a chunk into account."""
        self.started = True
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            # A worker that does not tell as it goes: a chunk with text is at least a token.
            self._guessed_tokens += sum(map(has_content, chunk.get("choices") or ()))
            return
        self.told = usage
        self._prompt_tokens = _number(usage, "prompt_tokens") or self._prompt_tokens
        self._output_tokens = max(self._output_tokens, _number(usage, "completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            self.cached_told = True
            self._cached_tokens = max(self._cached_tokens, details["cached_tokens"])

    def usage(self) -> TokenUsage:
        """What was used so far; nothing before the worker began."""
        if not self.started:
            return NO_USAGE
        system = min(self._system_tokens, self._prompt_tokens)
        return TokenUsage(
            input_tokens=self._prompt_tokens - system,
            system_tokens=system,
            cached_tokens=min(self._cached_tokens, self._prompt_tokens),
            output_tokens=self._output_tokens if self.told else self._guessed_tokens,
        )


def has_content(choice: Any) -> bool:
    """Whether a choice of a chunk carries output, or its end; the role alone is neither."""
    if not isinstance(choice, dict):
        return False
    if choice.get("finish_reason") is not None or choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _number(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
