"""The engine: ``step`` schedules, runs one forward pass, and hands out what it gave.

The local scheduler decides who is next, the engine what fits (scheduling/base.py). Running
decodes come first in a step's token budget, then prefills under way, then new admissions; a long
prompt is computed over several steps (chunked prefill). Nothing that runs is ever preempted,
because admission reserves prompt and maximal output.

An error of one sequence (logits that are not finite, an impossible prompt) fails that sequence. An
error of a whole forward pass fails the sequences in it. The engine goes on in both cases.

Weakness: calls without a cached prefix that arrive together compute it twice, except for the
samples of one call, which wait for their first one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from fairserve.engine.torch import sampler
from fairserve.engine.torch.batch import Chunk, assemble
from fairserve.engine.torch.detokenizer import detokenizer_factory
from fairserve.engine.torch.events import Admitted, EngineEvent, Failed, FinishReason, Generated
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.engine.torch.paged_cache import PagedCache
from fairserve.engine.torch.prefix_trie import TrieNode
from fairserve.engine.torch.sampler import Sampled
from fairserve.engine.torch.sequence import Sequence, SequenceRequest
from fairserve.scheduling.base import CacheNews, LocalCall, LocalScheduler


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of one engine."""

    kv_tokens: int
    """Size of the KV cache, rounded down to pages."""
    max_batch: int = 32
    """Sequences that run at once."""
    token_budget: int = 512
    """Tokens of one forward pass: decodes and prefill chunks."""

    def __post_init__(self) -> None:
        if self.kv_tokens < PAGE_TOKENS:
            raise ValueError(f"kv_tokens is {self.kv_tokens}; at least {PAGE_TOKENS} are needed")
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; it must be at least 1")
        if self.token_budget < self.max_batch:
            raise ValueError(
                f"token_budget is {self.token_budget}; a step must have room for one token of "
                f"each of the {self.max_batch} running sequences"
            )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges of now and counters since the start."""

    running: int = 0
    waiting: int = 0
    kv_used_share: float = 0.0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of admitted sequences, cached ones included."""
    generated_tokens: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0


class Engine:
    """One model, one KV cache, one local scheduler. Not thread-safe: see ``engine_thread``.

    ``emit`` gets the events, twice per step: admissions before the forward pass, tokens after it.
    The engine is also the :class:`~fairserve.scheduling.base.PrefixCache` of its scheduler.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: LocalScheduler,
        options: EngineOptions,
        emit: Callable[[list[EngineEvent]], None],
    ) -> None:
        self.loaded = loaded
        self.options = options
        self.cache = PagedCache(options.kv_tokens // PAGE_TOKENS)
        self._kv = loaded.kv_tensors(self.cache.pool.usable_pages)
        self._scheduler = scheduler
        self._emit = emit
        self._make_detokenizer = detokenizer_factory(loaded.tokenizer)
        self._waiting: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._finished = 0
        self._failed = 0
        self._cancelled = 0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.cache.pool.usable_pages * PAGE_TOKENS

    @property
    def max_model_len(self) -> int:
        """The most that prompt and output of one sequence may have together."""
        return min(self.loaded.max_positions, self.capacity_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step could do anything."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> list[Sequence]:
        """The sequences in the batch, in the order of admission."""
        return list(self._running.values())

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Cached prompt tokens of a waiting call, and the names of the pages at the match's end.

        A page that is cached is named by its node, one that is not by its parent's node and its tokens:
        exact, like every match here. See :class:`~fairserve.scheduling.base.PrefixCache`.
        """
        sequence = self._waiting[call.call_id]
        node = self.cache.match(sequence)
        keys = sequence.prompt_keys()
        following = (node, keys[node.depth]) if node.depth < len(keys) else None
        return node.depth * PAGE_TOKENS, node, following

    def follow(self, news: CacheNews) -> None:
        """Tell of every page that is stored or evicted from now on, besides who is told already."""
        trie = self.cache.trie
        on_store, on_evict = trie.on_store, trie.on_evict

        def stored(node: TrieNode) -> None:
            on_store(node)
            news.changed((node.parent, node.tokens))

        def evicted(node: TrieNode) -> None:
            on_evict(node)
            news.changed(node)

        trie.on_store, trie.on_evict = stored, evicted

    def stats(self) -> EngineStats:
        """A snapshot of the gauges and counters."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_used_share=self.cache.used_share,
            prefix_queried_tokens=self._queried_tokens,
            prefix_hit_tokens=self._hit_tokens,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            finished=self._finished,
            failed=self._failed,
            cancelled=self._cancelled,
        )

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. One that can never run tells ``Failed`` instead.

        Raises ValueError for a sequence id that is already here.
        """
        problem = self._problem(request)
        if problem is not None:
            self._failed += 1
            self._emit([Failed(request.sequence_id, problem)])
            return
        params = request.params
        seed = params.seed if params.seed is not None else random.SystemRandom().getrandbits(63)
        output = OutputText(self._make_detokenizer(), params.stop)
        sequence = Sequence(request, output, seed)
        self._scheduler.add(sequence.call)
        self._waiting[sequence.sequence_id] = sequence

    def cancel(self, sequence_id: str) -> None:
        """End a sequence without another word; one that is not here is no error."""
        if sequence_id in self._running:
            self._end(self._running[sequence_id], keep=True)
        elif sequence_id in self._waiting:
            del self._waiting[sequence_id]
            self._scheduler.finish(sequence_id)
        else:
            return
        self._cancelled += 1

    def fail_all(self, message: str) -> None:
        """End every sequence with an error."""
        self._fail(self.running, message)
        waiting = list(self._waiting)
        for sequence_id in waiting:
            del self._waiting[sequence_id]
            self._scheduler.finish(sequence_id)
            self._failed += 1
            self._emit([Failed(sequence_id, message)])

    def step(self) -> bool:
        """Schedule, run one forward pass, hand out the results. False if there was nothing to run.

        An error of the forward pass fails the sequences in it and is raised.
        """
        chunks = self._schedule()
        if not chunks:
            return False
        try:
            tokens = self._run(chunks)
        except Exception as error:
            self._fail([chunk.sequence for chunk in chunks], f"the forward pass failed: {error}")
            raise
        self._postprocess(chunks, tokens)
        return True

    def _problem(self, request: SequenceRequest) -> str | None:
        """Why a request can never run here."""
        ids = request.token_ids
        if len(ids) == 0:
            return "the prompt is empty"
        if int(ids.min()) < 0 or int(ids.max()) >= self.loaded.vocabulary:
            return (
                "the prompt has a token id that is not in the vocabulary; "
                f"allowed: 0 to {self.loaded.vocabulary - 1}"
            )
        total = len(ids) + request.params.max_tokens
        if total > self.max_model_len:
            return (
                f"prompt and output have up to {total} tokens; this engine's limit is "
                f"{self.max_model_len}"
            )
        return None

    # Schedule

    def _schedule(self) -> list[Chunk]:
        """The chunks of the next step. Their sequences have the pages they need."""
        chunks: list[Chunk] = []
        budget = self.options.token_budget
        running = self.running
        for sequence in running:
            if not sequence.is_prefilling:
                chunks.append(Chunk(sequence, sequence.uncomputed_tokens))
                budget -= sequence.uncomputed_tokens
        prefilling = [sequence for sequence in running if sequence.is_prefilling]
        admitted: list[EngineEvent] = []
        for sequence in prefilling:
            budget -= self._take_chunk(sequence, budget, chunks)
        if self._waiting:
            groups = {sequence.group_id for sequence in prefilling}
            self._scheduler.start_pass(self)
            while budget > 0 and len(self._running) < self.options.max_batch:
                call = self._scheduler.peek()
                if call is None:
                    break
                sequence = self._waiting[call.call_id]
                cached = None if sequence.group_id in groups else self.cache.try_admit(sequence)
                if cached is None:
                    self._scheduler.skip()
                    continue
                self._scheduler.accept(cached)
                self._start(sequence, cached)
                admitted.append(Admitted(sequence.sequence_id, cached))
                if sequence.prompt_tokens > PAGE_TOKENS:
                    groups.add(sequence.group_id)
                budget -= self._take_chunk(sequence, budget, chunks)
        if admitted:
            self._emit(admitted)
        for chunk in chunks:
            self.cache.grow(chunk.sequence, chunk.sequence.computed_tokens + chunk.tokens)
        return chunks

    def _take_chunk(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        tokens = min(sequence.uncomputed_tokens, budget)
        if tokens > 0:
            chunks.append(Chunk(sequence, tokens))
        return tokens

    def _start(self, sequence: Sequence, cached: int) -> None:
        del self._waiting[sequence.sequence_id]
        self._running[sequence.sequence_id] = sequence
        self._queried_tokens += sequence.prompt_tokens
        self._hit_tokens += cached
        self._prompt_tokens += sequence.prompt_tokens

    # Run

    @torch.inference_mode()
    def _run(self, chunks: list[Chunk]) -> dict[str, Sampled]:
        """One forward pass; the next token of each sequence that has one (or INVALID)."""
        batch = assemble(chunks, self._kv, self.loaded.dtype, self.loaded.device)
        logits = self.loaded.model(
            input_ids=batch.input_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            paged=batch.state,
        ).logits[0]
        sequences = [chunk.sequence for chunk in batch.chunks if chunk.gives_token]
        if not sequences:
            return {}
        tokens = sampler.sample(logits, sequences, self.loaded.eos_ids)
        return {
            sequence.sequence_id: token for sequence, token in zip(sequences, tokens, strict=True)
        }

    # Postprocess

    def _postprocess(self, chunks: list[Chunk], tokens: dict[str, Sampled]) -> None:
        events: list[EngineEvent] = []
        broken: list[Sequence] = []
        for chunk in chunks:
            sequence = chunk.sequence
            token = tokens.get(sequence.sequence_id)
            if token is not None and token.token_id == sampler.INVALID:
                broken.append(sequence)
                continue
            was_prefilling = sequence.is_prefilling
            sequence.computed_tokens += chunk.tokens
            if token is None:
                continue
            if was_prefilling:
                self.cache.commit(sequence)
            events.append(self._append(sequence, token))
        if events:
            self._emit(events)
        for sequence in broken:
            self._fail([sequence], sampler.why_invalid(sequence))

    def _append(self, sequence: Sequence, sampled: Sampled) -> Generated:
        """Add a token to its sequence, and end the sequence if it is the last one."""
        params = sequence.params
        token = sampled.token_id
        sequence.tokens.append(token)
        self._generated_tokens += 1
        self._scheduler.decoded(sequence.sequence_id, 1)
        finish: FinishReason | None = None
        text = ""
        if token in params.stop_token_ids or (
            token in self.loaded.eos_ids and not params.ignore_eos
        ):
            finish = "stop"
        else:
            text = sequence.output.push(token, sequence.generated_tokens > params.min_tokens)
            if sequence.output.stopped:
                finish = "stop"
            elif sequence.generated_tokens >= params.max_tokens:
                finish = "length"
        if finish is not None:
            text += sequence.output.flush()
            if sequence.output.stopped:
                finish = "stop"
            self._end(sequence, keep=True)
            self._finished += 1
        return Generated(sequence.sequence_id, text, 1, finish, sampled.logprobs)

    def _end(self, sequence: Sequence, keep: bool) -> None:
        """Take a sequence out of the batch. ``keep``: its full pages go to the prefix cache.

        Pages of an unfinished prefill are not kept: no logits have vouched for them yet.
        """
        if keep and not sequence.is_prefilling:
            self.cache.commit(sequence)
        if not keep:
            self._kv.scrub(self.cache.private_pages(sequence))
        self.cache.release(sequence)
        del self._running[sequence.sequence_id]
        self._scheduler.finish(sequence.sequence_id)

    def _fail(self, sequences: list[Sequence], message: str) -> None:
        for sequence in sequences:
            self._end(sequence, keep=False)
            self._failed += 1
        if sequences:
            self._emit([Failed(sequence.sequence_id, message) for sequence in sequences])
