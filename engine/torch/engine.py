"""The engine: ``step`` schedules, launches one forward pass, and publishes tokens.

On a GPU the published tokens are those of the previous pass, so that the device has work while the
host adds tokens to their sequences, publishes them, and schedules (``EngineOptions.overlap``).
Inputs of the next pass that the host does not know yet stay on the device. On a CPU a pass is
complete when the launch returns.

An error of one sequence (logits that are not finite, an impossible prompt, options or a text that
cannot be computed) fails that sequence. An error of a whole forward pass fails the sequences in it.
The engine continues in both cases.
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
from fairserve.engine.torch.launched_step import LaunchedStep
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.page_pool import PAGE_TOKENS, pages_for
from fairserve.engine.torch.paged_cache import PagedCache
from fairserve.engine.torch.sampler import Choice, Sampled
from fairserve.engine.torch.sequence import Sequence, SequenceRequest
from fairserve.scheduling.base import LocalScheduler

if TYPE_CHECKING:
    from fairserve.engine.torch.decode_graphs import DecodeGraphs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Current gauges, and counters since the start."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    """Sequences that run at a time, at most."""
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
    """Number of preemptions."""


class Engine:
    """Engine of one model, KV cache and local scheduler. Not thread-safe: see ``engine_thread``.

    ``emit`` receives the events twice per step: admissions before the forward pass, tokens after it
    (or after the launch of the next one).
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
        self._overlap = loaded.device.type == "cuda" if options.overlap is None else options.overlap
        self._launched: LaunchedStep | None = None
        self._emit = emit
        self._make_detokenizer = detokenizer_factory(loaded.tokenizer)
        self._generated_tokens = 0
        self._finished = 0
        self._failed = 0
        self._cancelled = 0

    @property
    def cache(self) -> PagedCache:
        """Return the bookkeeping of pages."""
        return self.batcher.cache

    @property
    def capacity_tokens(self) -> int:
        """Return the capacity of the KV cache in tokens."""
        return self.cache.pool.usable_pages * PAGE_TOKENS

    @property
    def max_model_len(self) -> int:
        """Return the maximum tokens of prompt and output of one sequence."""
        return min(self.loaded.max_positions, self.capacity_tokens)

    @property
    def has_work(self) -> bool:
        """Return whether a step has work."""
        return bool(self.batcher.waiting or self.batcher.running) or (self._launched is not None)

    @property
    def running(self) -> list[Sequence]:
        """Return the sequences in the batch, in the order of admission."""
        return list(self.batcher.running.values())

    def stats(self) -> EngineStats:
        """Return a snapshot of the gauges and counters."""
        batcher = self.batcher
        return EngineStats(
            running=len(batcher.running),
            waiting=len(batcher.waiting),
            slots=self.options.max_batch,
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
        """Queue a sequence; one that can never run emits ``Failed`` instead.

        Raises ValueError for a sequence id that is in use.
        """
        problem = self._problem(request)
        if problem is not None:
            self._failed += 1
            self._emit([Failed(request.sequence_id, problem)])
            return
        params = request.params
        seed = params.seed if params.seed is not None else random.SystemRandom().getrandbits(63)
        detokenizer = self._make_detokenizer(
            skip_special=params.skip_special, spaces=params.spaces_between_special
        )
        output = OutputText(detokenizer, params.stop, with_stop=params.include_stop)
        sequence = Sequence(request, output, seed)
        self.batcher.add(sequence)

    def cancel(self, sequence_id: str) -> None:
        """End a sequence without an event; unknown ids are ignored."""
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
        """Schedule, run one forward pass, publish the results. Return False if the engine is idle.

        An error of the forward pass fails the sequences in it and is raised.
        """
        if self._launched is not None and not self._may_overlap():
            self._settle_launched()
        chunks, admitted = self.batcher.next_step()
        if admitted:
            self._emit(list(admitted))
        if not chunks and self._launched is None:
            return False
        launched = self._launch(chunks) if chunks else None
        before, self._launched = self._launched, launched
        if before is not None:
            self._settle(before)
        if not self._overlap:
            self._settle_launched()
        return True

    def _problem(self, request: SequenceRequest) -> str | None:
        """Return the reason why a request can never run here; empty if it can."""
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
        """Return graphs of all batch sizes; None without a GPU, or if they cannot be recorded."""
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

    # --- a step -----------------------------------------------------------------------------------

    def _may_overlap(self) -> bool:
        """Return whether the next step can be made without the tokens of the launched one.

        Penalties and grammars need the output, and so does a preemption. O(running).
        """
        return not self.batcher.needs_preemption() and not any(
            each.pending_tokens and (each.adjustments is not None or each.constraint is not None)
            for each in self.batcher.running.values()
        )

    def _launch(self, chunks: list[Chunk]) -> LaunchedStep:
        """Launch a forward pass, and count its tokens as computed."""
        sequences = [chunk.sequence for chunk in chunks]
        try:
            sampled, choice = self._run(chunks)
        except Exception as error:
            self._fail(sequences, f"the forward pass failed: {error}")
            raise
        for chunk in chunks:
            chunk.sequence.launched(chunk.tokens, chunk.gives_token)
        return LaunchedStep(
            sequences, sampled, [sequence.computed_tokens for sequence in sampled], choice
        )

    @torch.inference_mode()
    def _run(self, chunks: list[Chunk]) -> tuple[list[Sequence], Choice]:
        """Run one forward pass; return the sequences that get a token, and the tokens."""
        pending = self._launched.pending() if self._launched is not None else None
        if self._graphs is not None and all(chunk.is_decode for chunk in chunks):
            logits = self._graphs.logits(chunks, pending)
        else:
            pad = self.loaded.pads_rows
            batch = assemble(chunks, self._kv, self._planner, pending, pad_rows=pad)
            chunks = batch.chunks
            logits = self.loaded.logits(
                batch.input_ids, batch.positions, batch.logit_rows, batch.state
            )
        sampled = [chunk.sequence for chunk in chunks if chunk.gives_token]
        return sampled, sampler.sample(logits, sampled, self.loaded.eos_ids)

    def _settle_launched(self) -> None:
        step, self._launched = self._launched, None
        if step is not None:
            self._settle(step)

    def _settle(self, step: LaunchedStep) -> None:
        """Wait for a step, and publish its tokens."""
        try:
            tokens = self._read(step)
        except Exception as error:
            here = self.batcher.running
            alive = [each for each in step.sequences if here.get(each.sequence_id) is each]
            self._fail(alive, f"the forward pass failed: {error}")
            raise
        events: list[EngineEvent] = []
        broken: list[Sequence] = []
        for sequence, token, computed in zip(
            step.sampled, tokens, step.computed_tokens, strict=True
        ):
            if self.batcher.running.get(sequence.sequence_id) is not sequence:
                continue  # it has ended since
            if token.token_id == sampler.INVALID:
                broken.append(sequence)
                continue
            uncached = sequence.vouched_tokens < sequence.prefill_tokens
            sequence.settled(token.token_id, computed)
            if uncached:
                self.cache.commit(sequence)
            event = self._add_token(sequence, token)
            if event is None:
                broken.append(sequence)
            else:
                events.append(event)
        if events:
            self._emit(events)
        for sequence in broken:
            at_fault = sequence.constraint is not None and bool(sequence.constraint.problem)
            self._fail([sequence], sampler.why_invalid(sequence), rejected=at_fault)

    def _read(self, step: LaunchedStep) -> list[Sampled]:
        """Return the tokens of a step by row of its choice; the host waits only here."""
        return step.choice.read()

    def _add_token(self, sequence: Sequence, sampled: Sampled) -> Generated | None:
        """Add a sequence's new token, which may end it; None if it has no text, so that it fails."""
        token = sampled.token_id
        self._generated_tokens += 1
        self.batcher.decoded(sequence, 1)
        try:
            text, finish = self._text_of(sequence, token)
        except Exception as error:
            _log.exception("the text of %s failed", sequence.sequence_id)
            sequence.problem = f"the text of the output failed: {error}"
            return None
        if finish is not None:
            self._end(sequence, keep=True)
            self._finished += 1
        reason: int | str | None = sequence.output.stop_string
        if finish == "stop" and reason is None and token in sequence.params.stop_token_ids:
            reason = token
        return Generated(sequence.sequence_id, text, 1, finish, sampled.logprobs, reason)

    def _text_of(self, sequence: Sequence, token: int) -> tuple[str, FinishReason | None]:
        """Return the text that a new token adds, and the reason if it is the last one."""
        params = sequence.params
        finish: FinishReason | None = None
        text = ""
        if token in params.stop_token_ids or (
            token in self.loaded.eos_ids and not params.ignore_eos
        ):
            finish = "stop"
            if params.include_stop:
                text = sequence.output.push(token, False)
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
        return text, finish

    def _end(self, sequence: Sequence, keep: bool) -> None:
        """Remove a sequence from the batch. ``keep``: its verified pages go to the prefix cache."""
        if keep:
            self.cache.commit(sequence)
        else:
            self._kv.scrub(self.cache.private_pages(sequence))
        self.batcher.end(sequence)

    def _fail(self, sequences: list[Sequence], message: str, *, rejected: bool = False) -> None:
        for sequence in sequences:
            self._end(sequence, keep=False)
            self._failed += 1
        if sequences:
            self._emit([Failed(each.sequence_id, message, rejected=rejected) for each in sequences])
