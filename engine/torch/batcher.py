"""Queue and batch of an engine, and the chunks of its next step.

The local scheduler decides the order, the engine checks the capacity (scheduling/base.py). Running
decodes come first in a step's token budget, then started prefills, then new admissions; a long
prompt is computed over several steps (chunked prefill).

Admission reserves the pages of the prefill. If a decode then finds no page, sequences are
preempted: the victim's pages go to the prefix cache, it waits again at its old place, and tokens
evicted in the meantime are computed again without a charge (recompute). The victim belongs to the
client furthest over its share (``fair``), or was admitted last, as in other engines (``latest``).
With ``never`` admission also reserves the maximum output, as the papers' bounds assume.

Weakness: calls with an uncached common prefix that arrive together compute it twice, except for the
samples of one call, which wait for the first one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import Admitted
from fairserve.engine.torch.page_pool import PAGE_TOKENS, pages_for
from fairserve.engine.torch.paged_cache import PagedCache
from fairserve.engine.torch.prefix_trie import TrieNode
from fairserve.engine.torch.sequence import Sequence
from fairserve.scheduling.base import CacheListener, LocalCall, LocalScheduler


class Batcher:
    """Queue and batch of one engine, and its scheduler's prefix cache. Touches no tensor.

    Implements :class:`~fairserve.scheduling.base.PrefixCache`.
    """

    def __init__(self, scheduler: LocalScheduler, options: EngineOptions) -> None:
        self.cache = PagedCache(options.kv_tokens // PAGE_TOKENS)
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}
        """Running sequences in the order of admission."""
        self.queried_tokens = 0
        """Prompt tokens of admitted sequences."""
        self.hit_tokens = 0
        """Prompt tokens of admitted sequences that were cached."""
        self.preemptions = 0
        self._scheduler = scheduler
        self._options = options
        self._spare_pages = math.ceil(options.spare_share * self.cache.pool.usable_pages)

    # --- the cache as the scheduler sees it -------------------------------------------------------

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return a waiting call's cached tokens, and the names of the pages at the end of its match.

        A cached page is named by its node, another one by its parent's node and its tokens, so
        names are exact. See :class:`~fairserve.scheduling.base.PrefixCache`.
        """
        sequence = self.waiting[call.call_id]
        node = self.cache.match(sequence)
        keys = sequence.reusable_keys()
        following = (node, keys[node.depth]) if node.depth < len(keys) else None
        return node.depth * PAGE_TOKENS, node, following

    def follow(self, listener: CacheListener) -> None:
        """Notify ``listener``, besides other listeners, of every page that is stored or evicted."""
        trie = self.cache.trie
        on_store, on_evict = trie.on_store, trie.on_evict

        def stored(node: TrieNode) -> None:
            on_store(node)
            listener.changed((node.parent, node.tokens))

        def evicted(node: TrieNode) -> None:
            on_evict(node)
            listener.changed(node)

        trie.on_store, trie.on_evict = stored, evicted

    # --- arrivals and ends ------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError for an id that is in use."""
        self._scheduler.add(sequence.call)
        self.waiting[sequence.sequence_id] = sequence

    def decoded(self, sequence: Sequence, tokens: int) -> None:
        """Charge a running sequence for the tokens that it generated."""
        self._scheduler.decoded(sequence.sequence_id, tokens)

    def drop(self, sequence_id: str) -> None:
        """Remove a waiting sequence. Raises KeyError if it is not waiting."""
        del self.waiting[sequence_id]
        self._scheduler.finish(sequence_id)

    def end(self, sequence: Sequence) -> None:
        """Remove a running sequence and free its uncommitted pages."""
        self.cache.release(sequence)
        del self.running[sequence.sequence_id]
        self._scheduler.finish(sequence.sequence_id)

    # --- the next step ----------------------------------------------------------------------------

    def next_step(self) -> tuple[list[Chunk], list[Admitted]]:
        """Return the chunks of the next step, whose pages are allocated, and its admissions."""
        before = self.preemptions
        for sequence in self._decoding():
            if sequence.sequence_id in self.running:
                self._make_room(sequence)
        chunks = [Chunk(each, each.uncomputed_tokens) for each in self._decoding()]
        budget = self._options.token_budget - sum(chunk.tokens for chunk in chunks)
        for sequence in self.running.values():
            if sequence.is_prefilling:
                budget -= self._take_chunk(sequence, budget, chunks)
        # A sequence that just released pages for others would reserve them again.
        if not self.waiting or self.preemptions > before:
            return chunks, []
        return chunks, self._admit(self._uncached_groups(), budget, chunks)

    def needs_preemption(self) -> bool:
        """Return whether the next step lacks a page for one of its decodes. O(running)."""
        short = sum(
            each.pages < pages_for(len(each.tokens)) and not each.promised_pages
            for each in self._decoding()
        )
        return short > self.cache.spare_pages

    def _decoding(self) -> list[Sequence]:
        """Return the sequences that decode in the next step, in the order of admission."""
        return [
            each for each in self.running.values() if not each.is_prefilling and not each.awaits_end
        ]

    def _uncached_groups(self) -> set[str]:
        """Return the groups whose prompt is being computed and is not in the prefix cache yet."""
        return {
            each.group_id
            for each in self.running.values()
            if each.vouched_tokens < each.prefill_tokens
        }

    def _admit(self, groups: set[str], budget: int, chunks: list[Chunk]) -> list[Admitted]:
        """Admit waiting sequences to the batch. Samples of ``groups`` wait for their first one."""
        admitted: list[Admitted] = []
        self._scheduler.start_pass(self)
        while budget > 0 and len(self.running) < self._options.max_batch:
            call = self._scheduler.peek()
            if call is None:
                break
            sequence = self.waiting[call.call_id]
            cached = None if sequence.group_id in groups else self._try_admit(sequence)
            if cached is None:
                self._scheduler.skip()
                continue
            self._scheduler.accept(cached)
            if not sequence.preemptions:
                admitted.append(Admitted(sequence.sequence_id, cached))
            self._start(sequence, cached)
            if sequence.prefill_tokens > PAGE_TOKENS:
                groups.add(sequence.group_id)
            budget -= self._take_chunk(sequence, budget, chunks)
        return admitted

    def _try_admit(self, sequence: Sequence) -> int | None:
        """Reserve pages for a waiting sequence; return its cached tokens, None if it does not fit."""
        if self._options.preemption == "never":
            return self.cache.try_admit(sequence, sequence.total_pages)
        spare = self._spare_pages if self.running else 0
        return self.cache.try_admit(sequence, pages_for(sequence.prefill_tokens), spare)

    def _take_chunk(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Add a chunk of a prefill with reserved pages to the step."""
        tokens = min(sequence.uncomputed_tokens, budget)
        if tokens > 0:
            self.cache.grow(sequence, sequence.computed_tokens + tokens)
            chunks.append(Chunk(sequence, tokens))
        return tokens

    def _start(self, sequence: Sequence, cached: int) -> None:
        del self.waiting[sequence.sequence_id]
        self.running[sequence.sequence_id] = sequence
        if not sequence.preemptions:
            self.queried_tokens += sequence.prompt_tokens
            self.hit_tokens += cached

    # --- preemption -------------------------------------------------------------------------------

    def _make_room(self, sequence: Sequence) -> None:
        """Allocate a page for a decode; preempt other sequences, or this one, if needed."""
        while not self.cache.grow(sequence, len(sequence.tokens)):
            victim = self._victim()
            self.preempt(victim)
            if victim is sequence:
                return

    def _victim(self) -> Sequence:
        """Return the sequence to preempt. O(running)."""
        running = list(self.running.values())
        if self._options.preemption == "latest":
            return running[-1]
        surplus = self._scheduler.surplus
        _, last = max((surplus(each.sequence_id), at) for at, each in enumerate(running))
        return running[last]

    def preempt(self, sequence: Sequence) -> None:
        """Requeue a running sequence."""
        self.cache.commit(sequence)
        self.cache.release(sequence)
        sequence.preempted()
        del self.running[sequence.sequence_id]
        self.waiting[sequence.sequence_id] = sequence
        self._scheduler.requeue(sequence.sequence_id)
        self.preemptions += 1
