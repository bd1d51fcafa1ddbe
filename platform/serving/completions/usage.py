"""Read a worker's usage from its chunks, for the counters and the ledger.

The embedded engine reports all samples together in every chunk; vLLM reports each choice apart, so that
for ``n`` over 1 the running number is a lower bound until the last chunk, which has the truth. Other
servers report at the end only: until then a chunk with output counts as a token, a lower bound, too. For
one that never reports, four bytes count as a token, or a chunk as one if that is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.engine.wire.chunk_output import output_bytes, output_chunks
from fairserve.interactions.call import NO_USAGE, TokenUsage

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class AnswerTotals:
    """Totals of an answer whose chunks another process reads, as it reported them last."""

    prompt_tokens: int | None = None
    """Tokens that the worker reported; None: it has not."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    chunks: int = 0
    """Choices of chunks with output."""
    output_bytes: int = 0
    """Bytes of the text, tool calls included."""


NO_TOTALS = AnswerTotals()


class UsageMeter:
    """Usage of one attempt. Numbers only grow."""

    def __init__(self, prompt_tokens: int, system_tokens: int) -> None:
        """Start with the counts of the gateway; the worker's own count replaces the first."""
        self._prompt_tokens = prompt_tokens
        self._system_tokens = system_tokens
        self._cached_tokens = 0
        self._output_tokens = 0
        self._output_chunks = 0
        self._output_bytes = 0
        self._ended = False
        self.started = False
        """The worker has started the prompt."""
        self.cached_tokens_reported = False
        self._reported: dict[str, Any] | None = None
        """The last usage object of the worker."""

    def read(self, chunk: dict[str, Any]) -> None:
        """Add a chunk."""
        self.started = True
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            self._output_chunks += output_chunks(chunk)
            self._output_bytes += output_bytes(chunk)
            return
        self._reported = usage
        total_tokens = _number(usage, "total_tokens") - _number(usage, "completion_tokens")
        prompt_tokens = _number(usage, "prompt_tokens") or max(0, total_tokens)
        self._prompt_tokens = prompt_tokens or self._prompt_tokens
        self._output_tokens = max(self._output_tokens, _number(usage, "completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            self.cached_tokens_reported = True
            self._cached_tokens = max(self._cached_tokens, details["cached_tokens"])

    def read_totals(self, totals: AnswerTotals) -> None:
        """Take the totals of an answer whose chunks are not read here."""
        self._output_chunks, self._output_bytes = totals.chunks, totals.output_bytes
        self.started = True
        if totals.prompt_tokens is None and totals.output_tokens is None:
            return
        usage: dict[str, Any] = {
            "prompt_tokens": totals.prompt_tokens or 0,
            "completion_tokens": totals.output_tokens or 0,
        }
        if totals.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": totals.cached_tokens}
        self.read({"usage": usage})

    def ended(self) -> None:
        """Mark the answer as complete: the worker reports nothing more."""
        self._ended = True

    def usage(self) -> TokenUsage:
        """Return the usage so far; zero before the worker started."""
        if not self.started:
            return NO_USAGE
        system = min(self._system_tokens, self._prompt_tokens)
        return TokenUsage(
            input_tokens=self._prompt_tokens - system,
            system_tokens=system,
            cached_tokens=min(self._cached_tokens, self._prompt_tokens),
            output_tokens=self._output_tokens if self._reported else self._guess(),
        )

    def answer(self) -> dict[str, Any]:
        """Return the usage of a complete answer for its client: the worker's, or the counted one."""
        if self._reported is not None:
            return self._reported
        used = self.usage()
        return {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.prompt_tokens + used.output_tokens,
        }

    def _guess(self) -> int:
        if not self._ended:
            return self._output_chunks
        return max(self._output_chunks, -(-self._output_bytes // BYTES_PER_TOKEN))


def _number(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
