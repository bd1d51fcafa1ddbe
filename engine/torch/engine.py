"""The engine: ``step`` schedules, runs one forward pass, and hands out what it gave.

An error of one sequence (logits that are not finite, an impossible prompt) fails that sequence. An
error of a whole forward pass fails the sequences in it. The engine goes on in both cases.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fairserve.engine.torch import sampler
from fairserve.engine.torch.attention import planner_for
from fairserve.engine.torch.batch import assemble
from fairserve.engine.torch.batcher import Batcher
from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.detokenizer import detokenizer_factory
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import EngineEvent, Failed, FinishReason, Generated
from fairserve.engine.torch.gather_attention import GatherPlan
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.page_pool import PAGE_TOKENS, pages_for
from fairserve.engine.torch.paged_cache import PagedCache
from fairserve.engine.torch.sampler import Sampled
from fairserve.engine.torch.sequence import Sequence, SequenceRequest
from fairserve.scheduling.base import LocalScheduler

if TYPE_CHECKING:
    from fairserve.engine.torch.decode_graphs import DecodeGraphs

_log = logging.getLogger(__name__)


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
    preempted: int = 0
    """How often a sequence was put back into the queue."""


class Engine:
    """One model, one KV cache, one local scheduler. Not thread-safe: see ``engine_thread``.

    ``emit`` gets the events, twice per step: admissions before the forward pass, tokens after it.
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
        self._kv = loaded.kv_tensors(options.kv_tokens // PAGE_TOKENS)
        self.batcher = Batcher(scheduler, options)
        self._planner = planner_for(loaded.device)
        self._graphs = self._make_graphs() if options.cuda_graphs else None
        self._emit = emit
        self._make_detokenizer = detokenizer_factory(loaded.tokenizer)
        self._generated_tokens = 0
        self._finished = 0
        self._failed = 0
        self._cancelled = 0

    @property
    def cache(self) -> PagedCache:
        """Who holds which pages."""
        return self.batcher.cache

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
        return bool(self.batcher.waiting or self.batcher.running)

    @property
    def running(self) -> list[Sequence]:
        """The sequences in the batch, in the order of admission."""
        return list(self.batcher.running.values())

    def stats(self) -> EngineStats:
        """A snapshot of the gauges and counters."""
        batcher = self.batcher
        return EngineStats(
            running=len(batcher.running),
            waiting=len(batcher.waiting),
            kv_used_share=self.cache.used_share,
            prefix_queried_tokens=batcher.queried_tokens,
            prefix_hit_tokens=batcher.hit_tokens,
            prompt_tokens=batcher.queried_tokens,
            generated_tokens=self._generated_tokens,
            finished=self._finished,
            failed=self._failed,
            cancelled=self._cancelled,
            preempted=batcher.preemptions,
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
        self.batcher.add(sequence)

    def cancel(self, sequence_id: str) -> None:
        """End a sequence without another word; one that is not here is no error."""
        running = self.batcher.running.get(sequence_id)
        if running is not None:
            self._end(running, keep=True)
        elif sequence_id in self.batcher.waiting:
            self.batcher.drop(sequence_id)
        else:
            return
        self._cancelled += 1

    def fail_all(self, message: str) -> None:
        """End every sequence with an error."""
        self._fail(self.running, message)
        for sequence_id in list(self.batcher.waiting):
            self.batcher.drop(sequence_id)
            self._failed += 1
            self._emit([Failed(sequence_id, message)])

    def step(self) -> bool:
        """Schedule, run one forward pass, hand out the results. False if there was nothing to run.

        An error of the forward pass fails the sequences in it and is raised.
        """
        chunks, admitted = self.batcher.next_step()
        if admitted:
            self._emit(list(admitted))
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

    def _make_graphs(self) -> DecodeGraphs | None:
        """Graphs of all batch sizes; None where there is no GPU, or it cannot record them."""
        if self._planner is GatherPlan or self.loaded.device.type != "cuda":
            return None
        from fairserve.engine.torch.decode_graphs import DecodeGraphs

        most_pages = pages_for(self.max_model_len)
        try:
            with torch.inference_mode():
                return DecodeGraphs(
                    self.loaded.logits, self._kv, self.options.max_batch, most_pages
                )
        except RuntimeError as error:
            _log.warning("no CUDA graphs, so decodes are launched kernel by kernel: %s", error)
            return None

    # Run

    @torch.inference_mode()
    def _run(self, chunks: list[Chunk]) -> dict[str, Sampled]:
        """One forward pass; the next token of each sequence that has one (or INVALID)."""
        if self._graphs is not None and all(chunk.is_decode for chunk in chunks):
            logits = self._graphs.logits(chunks)
        else:
            batch = assemble(chunks, self._kv, self._planner)
            chunks = batch.chunks
            logits = self.loaded.logits(
                batch.input_ids, batch.positions, batch.logit_rows, batch.state
            )
        sequences = [chunk.sequence for chunk in chunks if chunk.gives_token]
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
        self.batcher.decoded(sequence, 1)
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
        self.batcher.end(sequence)

    def _fail(self, sequences: list[Sequence], message: str) -> None:
        for sequence in sequences:
            self._end(sequence, keep=False)
            self._failed += 1
        if sequences:
            self._emit([Failed(sequence.sequence_id, message) for sequence in sequences])
