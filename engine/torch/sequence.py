"""A sequence: one sample of one call, from its arrival at the engine to its end.

It has its tokens and the number of computed ones; their pages are managed by
:class:`~fairserve.engine.torch.paged_cache.PagedCache`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairserve.engine.torch.logit_adjustments import LogitAdjustments
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.page_pool import PAGE_TOKENS, pages_for
from fairserve.engine.torch.prefix_trie import PageTokens, TrieNode
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.interactions.call import TokenIds
from fairserve.scheduling.base import LocalCall

PENDING = -1
"""Placeholder of a token that a launched step will produce."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """Request to the engine. ``group_id`` names the call to which the sample belongs."""

    sequence_id: str
    client_id: str
    token_ids: TokenIds
    params: SamplingParams
    group_id: str = ""
    weight: float = 1.0
    expected_output_tokens: int = 0
    salt: str = ""


class Sequence:
    """State of one sequence. ``call`` is its form for the local scheduler."""

    def __init__(self, request: SequenceRequest, output: OutputText, seed: int) -> None:
        self.sequence_id = request.sequence_id
        self.group_id = request.group_id or request.sequence_id
        self.salt = request.salt
        self.params = request.params
        self.output = output
        self.tokens: list[int] = request.token_ids.tolist()
        """Tokens of prompt and output; the last ``pending_tokens`` are ``PENDING``."""
        self.prompt_tokens = len(self.tokens)
        self.prefill_tokens = self.prompt_tokens
        """Tokens to compute before the next one can be chosen: the prompt, or all after a preemption."""
        self.computed_tokens = 0
        """Leading tokens whose keys and values are in the cache, or will be after the launched
        steps."""
        self.vouched_tokens = 0
        """Computed tokens with logits free of NaN, so that others may reuse them."""
        self.pending_tokens = 0
        """Output tokens that launched steps will produce."""
        self.preemptions = 0
        """Number of preemptions."""
        self.problem = ""
        """Error that ends this sequence alone; empty: none."""
        self.random = np.random.Generator(np.random.PCG64(seed))
        """Generator of one number per sampled token, independent of the rest of the batch."""
        self.adjustments = (
            LogitAdjustments(request.params) if request.params.adjusts_logits else None
        )
        grammar = request.params.grammar
        self.constraint = grammar.start() if grammar is not None else None
        self.call = LocalCall(
            call_id=request.sequence_id,
            client_id=request.client_id,
            prompt_tokens=self.prompt_tokens,
            max_output_tokens=request.params.max_tokens,
            token_ids=request.token_ids,
            weight=request.weight,
            expected_output_tokens=request.expected_output_tokens,
        )
        self.total_pages = pages_for(self.prompt_tokens + request.params.max_tokens)
        """Maximum number of pages that it can hold, shared ones included."""
        self.matched: TrieNode | None = None
        """Node where the last prefix match ended, while it waits."""
        self.node: TrieNode | None = None
        """Deepest trie node that holds its tokens, locked, while it runs."""
        self.page_table: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Page of each 16 tokens while it runs; the first ``pages`` entries are valid."""
        self.pages = 0
        self.promised_pages = 0
        """Number of pages that are reserved for it and not taken yet, while it runs."""
        self._page_keys: list[PageTokens] = []

    @property
    def output_tokens(self) -> list[int]:
        """Return the known output."""
        return self.tokens[self.prompt_tokens : self.prompt_tokens + self.generated_tokens]

    @property
    def generated_tokens(self) -> int:
        """Return the number of known output tokens."""
        return len(self.tokens) - self.prompt_tokens - self.pending_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Return the number of tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Return whether tokens other than a new one must be computed."""
        return self.computed_tokens < self.prefill_tokens

    @property
    def awaits_end(self) -> bool:
        """Return whether a launched step produces its last allowed token."""
        return len(self.tokens) - self.prompt_tokens >= self.params.max_tokens

    def launched(self, tokens: int, gives_token: bool) -> None:
        """Record a launched step, which computes ``tokens`` more and may produce the next one."""
        self.computed_tokens += tokens
        if gives_token:
            self.tokens.append(PENDING)
            self.pending_tokens += 1

    def settled(self, token: int, computed_tokens: int) -> None:
        """Record the end of the oldest step that yields its token, and the tokens computed so far."""
        self.tokens[-self.pending_tokens] = token
        self.pending_tokens -= 1
        self.vouched_tokens = computed_tokens

    def preempted(self) -> None:
        """Return to waiting: all tokens must be computed again, or found in the cache.

        Raises ValueError while a token is pending.
        """
        if self.pending_tokens:
            raise ValueError(f"{self.sequence_id} waits for a token of a launched step")
        self.prefill_tokens = len(self.tokens)
        self.computed_tokens = self.vouched_tokens = 0
        self.preemptions += 1

    def page_keys(self, count: int) -> list[PageTokens]:
        """Return the tokens of the first ``count`` full pages (at least), as keys of the trie."""
        keys = self._page_keys
        for page in range(len(keys), count):
            start = page * PAGE_TOKENS
            keys.append(tuple(self.tokens[start : start + PAGE_TOKENS]))
        return keys

    def reusable_keys(self) -> list[PageTokens]:
        """Return keys of the pages that a prefill may reuse; its last token is always computed."""
        return self.page_keys((self.prefill_tokens - 1) // PAGE_TOKENS)
