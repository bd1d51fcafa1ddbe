"""The usage of one attempt: what its worker reports, with an estimate of what it does not.

Each usable count of the output covers all chunks up to it, and counts all samples together: the embedded
engine reports it so, and vLLM's counts are added up where they arrive
(:mod:`fairserve.engine.wire.stream_events`). Other servers report at the end only, or never: a
chunk with output that no count covers is a token, a lower bound, and at the end four bytes are a token,
or a chunk is one if that is more.

A count that is too small for the text before it is not usable: 0 after some text, or less than one token
for ``MAX_TOKEN_BYTES``. One that has not grown covers nothing more, until the last one. All numbers are
within the :class:`UsageBounds` of the call. A worker that sends more than the call may generate has
failed: :meth:`UsageMeter.read` raises.

Cost: one pass over the texts of a chunk, 3 to 5 us. Weakness: a server that sends no usage and splits
tokens into several chunks is counted by its chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairserve.engine.wire.base import WorkerStreamError, output_size
from fairserve.engine.wire.reported_usage import UsageBounds, count_of, read_usage
from fairserve.interactions.call import NO_USAGE, TokenUsage

BYTES_PER_TOKEN = 4
MAX_TOKEN_BYTES = 128
"""Bytes of the longest tokens of today's vocabularies."""
FREE_TOKENS = 64
"""Tokens by which an answer may be longer than its call allows before it is measured."""
FREE_CHUNKS = 4096
"""Chunks without output that an answer may have besides: some servers keep a connection alive so."""


UNKNOWN_BOUNDS = UsageBounds()


class UsageMeter:
    """Usage of one attempt. The numbers of :meth:`usage` only grow; :meth:`total` has the last ones."""

    def __init__(
        self, prompt_tokens: int, system_tokens: int, bounds: UsageBounds = UNKNOWN_BOUNDS
    ) -> None:
        """Start with the platform's counts; a usable count of the worker's replaces the first."""
        self._prompt_tokens = prompt_tokens
        self._system_tokens = system_tokens
        self._bounds = bounds
        self._cached_tokens = 0
        self._reported_tokens = 0
        """Largest usable count of the output."""
        self._running_tokens = 0
        """Output that was shown so far."""
        self._all_chunks = 0
        self._chunks = self._bytes = 0
        """Choices of chunks with output, and the bytes of their texts."""
        self._covered_chunks = self._covered_bytes = 0
        """The part of these up to and with the last usable count."""
        self._prompt_details: Mapping[str, object] = {}
        self._output_details: Mapping[str, int] = {}
        self._reasoning_tokens = 0
        self.started = False
        """The worker has started the prompt."""
        self.cached_tokens_reported = False

    def read(self, chunk: dict[str, Any]) -> None:
        """Add a chunk. Raises WorkerStreamError if it is beyond what the call may generate."""
        self.started = True
        self._all_chunks += 1
        chunks, size = output_size(chunk)
        self._chunks += chunks
        self._bytes += size
        self._check_length()
        if usage := chunk.get("usage"):
            self._report(usage, last=not chunk.get("choices"))

    def read_text(self, text_bytes: int, output_tokens: int | None) -> None:
        """Add a chunk that has nothing new but a text and perhaps a count; raises as :meth:`read`."""
        self._all_chunks += 1
        self._chunks += 1
        self._bytes += text_bytes
        self._check_length()
        self._take_output(count_of(output_tokens, self._bounds.output_tokens), last=False)

    def show(self, chunk: dict[str, Any]) -> None:
        """Replace the worker's running usage in a chunk, which was read, by the numbers so far."""
        if chunk.get("usage") is not None:
            chunk["usage"] = self.shown(self.usage())

    def usage(self) -> TokenUsage:
        """Return the usage so far; zero before the worker started."""
        if not self.started:
            return NO_USAGE
        return self._usage(self.running_tokens())

    def running_tokens(self) -> int:
        """Return the output tokens so far, as :meth:`usage` has them."""
        output = self._reported_tokens + self._chunks - self._covered_chunks
        self._running_tokens = max(self._running_tokens, min(output, self._bounds.output_tokens))
        return self._running_tokens

    def total(self) -> TokenUsage:
        """Return the usage of an answer that has ended: the worker reports nothing more."""
        if not self.started:
            return NO_USAGE
        chunks = self._chunks - self._covered_chunks
        text = -(-(self._bytes - self._covered_bytes) // BYTES_PER_TOKEN)
        output = self._reported_tokens + max(chunks, text)
        return self._usage(min(output, self._bounds.output_tokens))

    def _report(self, usage: Any, *, last: bool) -> None:
        """Take the usable counts of a worker's usage; ``last``: it comes after the output."""
        reported = read_usage(usage, self._bounds)
        if reported.prompt_tokens is not None:
            self._prompt_tokens = reported.prompt_tokens
            self._prompt_details = reported.prompt_details
        if reported.cached_tokens is not None:
            self.cached_tokens_reported = True
            self._cached_tokens = max(self._cached_tokens, reported.cached_tokens)
        if self._take_output(reported.output_tokens, last=last):
            self._output_details = details = reported.output_details
            reasoning = details.get("reasoning_tokens", 0)
            self._reasoning_tokens = max(self._reasoning_tokens, reasoning)

    def _take_output(self, output: int | None, *, last: bool) -> bool:
        """Take a count of the output; return whether it is usable, and covers the chunks so far."""
        if output is None:
            return False
        if output < max(self._chunks > 0, -(-self._bytes // MAX_TOKEN_BYTES)):
            return False  # the text so far has more tokens
        if output <= self._reported_tokens and not last:
            return False
        self._reported_tokens = max(self._reported_tokens, output)
        self._covered_chunks, self._covered_bytes = self._chunks, self._bytes
        return True

    def _check_length(self) -> None:
        """Raise WorkerStreamError if the answer is longer than its call allows.

        A server may split a token into several chunks, and a token may have many bytes: each alone has a
        wide bound, both together a narrow one.
        """
        most = self._bounds.output_tokens + FREE_TOKENS
        if (
            self._bytes > MAX_TOKEN_BYTES * most
            or self._chunks > 16 * most
            or (self._chunks > 2 * most and self._bytes > 8 * most)
            or self._all_chunks > 16 * most + FREE_CHUNKS
        ):
            allowed = self._bounds.output_tokens
            text = f"its answer is longer than the {allowed} tokens that its call may generate"
            raise WorkerStreamError(text, cause="failed", client_message=text)

    def _usage(self, output_tokens: int) -> TokenUsage:
        system = min(self._system_tokens, self._prompt_tokens)
        return TokenUsage(
            input_tokens=self._prompt_tokens - system,
            system_tokens=system,
            cached_tokens=min(self._cached_tokens, self._prompt_tokens),
            output_tokens=output_tokens,
            reasoning_tokens=min(self._reasoning_tokens, output_tokens),
        )

    def shown(self, used: TokenUsage) -> dict[str, Any]:
        """Return a usage of the attempt for its client, in OpenAI's shape."""
        shown: dict[str, Any] = {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.prompt_tokens + used.output_tokens,
        }
        cached = {"cached_tokens": used.cached_tokens} if self.cached_tokens_reported else {}
        if cached or self._prompt_details:
            shown["prompt_tokens_details"] = {**cached, **self._prompt_details}
        if self._output_details:
            shown["completion_tokens_details"] = dict(self._output_details)
        return shown
