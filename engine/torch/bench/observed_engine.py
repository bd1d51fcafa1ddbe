"""The engine with an observer of its outputs and of the time of each part of its steps.

It is a subclass that calls the engine's own methods, so the serving engine has no hook and no cost.
A step is divided into ``schedule`` (batch, admissions and their events, pages), ``prepare`` (the
batch as tensors), ``forward`` (the model), ``sample``, and ``publish`` (tokens to their sequences,
their text, the prefix cache, events).

While it records, steps do not overlap, and on a GPU every step waits for the device after the
forward pass, so that its time is not counted elsewhere; such steps take longer than others. If a
recorded graph runs, its launch counts as ``prepare``: the two cannot be separated from outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from fairserve.engine.simulated.cost_model import pairs
from fairserve.engine.torch.batcher import Batcher
from fairserve.engine.torch.bench.runner import PassLoad, TimedStep
from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.engine import Engine
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import Admitted, EngineEvent
from fairserve.engine.torch.launched_step import LaunchedStep, PendingTokens
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.sampler import Sampled
from fairserve.engine.torch.sequence import Sequence as TokenSequence
from fairserve.scheduling.base import LocalScheduler

if TYPE_CHECKING:
    from fairserve.engine.torch.decode_graphs import DecodeGraphs

Clock = Callable[[], float]


def load_of(chunks: Sequence[Chunk]) -> PassLoad:
    """Return the counts of a pass over these chunks, before it runs."""
    prefill_tokens, prefill_pairs, sequences, held_tokens = 0, 0.0, 0, 0
    for chunk in chunks:
        computed = chunk.sequence.computed_tokens
        if chunk.sequence.is_prefilling:
            prefill_tokens += chunk.tokens
            prefill_pairs += pairs(computed, chunk.tokens)
        else:
            sequences += 1
            held_tokens += computed + chunk.tokens
    return PassLoad(prefill_tokens, prefill_pairs, sequences, held_tokens)


class ObservedEngine(Engine):
    """Engine for benchmarks. ``clock`` returns seconds."""

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: LocalScheduler,
        options: EngineOptions,
        emit: Callable[[list[EngineEvent]], None],
        clock: Clock = time.perf_counter,
    ) -> None:
        self._marks = _Marks(loaded.device, clock)
        timed = _TimedModel(loaded.model, self._marks)
        super().__init__(replace(loaded, model=timed), scheduler, options, emit)
        self.batcher = _TimedBatcher(scheduler, options, self._marks)
        if self._graphs is not None:
            self._graphs = cast("DecodeGraphs", TimedGraphs(self._graphs, self._marks))
        self.outputs: dict[str, tuple[int, ...]] = {}
        """Tokens of each ended sequence by its id, until the caller removes them."""
        self.steps: list[TimedStep] = []
        """Recorded steps."""
        self._overlaps = self._overlap

    @property
    def recording(self) -> bool:
        """Return whether steps are recorded."""
        return self._marks.on

    @recording.setter
    def recording(self, on: bool) -> None:
        self._marks.on = on
        self._overlap = self._overlaps and not on

    def step(self) -> bool:
        """Run a step, and record it."""
        marks = self._marks
        if not marks.on:
            return super().step()
        begin_s = marks.clock()
        if not super().step():
            return False
        end_s = marks.clock()
        # Between next_step and the run are the admissions' events, and the observer's own counting.
        schedule_s = (marks.scheduled_s - begin_s) + (marks.run_s - marks.counted_s)
        parts_s = (
            schedule_s,
            marks.forward_s - marks.run_s,
            marks.forward_end_s - marks.forward_s,
            marks.sampled_s - marks.forward_end_s,
            end_s - marks.sampled_s,
        )
        self.steps.append(TimedStep(marks.load, parts_s))
        return True

    def _launch(self, chunks: list[Chunk]) -> LaunchedStep:
        self._marks.run_s = self._marks.clock()
        return super()._launch(chunks)

    def _read(self, step: LaunchedStep) -> list[Sampled]:
        tokens = super()._read(step)
        self._marks.sampled_s = self._marks.clock()
        return tokens

    def _end(self, sequence: TokenSequence, keep: bool) -> None:
        self.outputs[sequence.sequence_id] = tuple(sequence.output_tokens)
        super()._end(sequence, keep)


class _Marks:
    """Times at which the parts of the current step began and ended."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.clock = clock
        self.on = False
        self.load = load_of([])
        self.scheduled_s = self.counted_s = self.run_s = 0.0
        self.forward_s = self.forward_end_s = self.sampled_s = 0.0
        self._on_gpu = device.type == "cuda"

    def forward_ends(self) -> None:
        """End ``forward``: wait for the results of the model."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self.forward_end_s = self.clock()


class _TimedBatcher(Batcher):
    def __init__(self, scheduler: LocalScheduler, options: EngineOptions, marks: _Marks) -> None:
        super().__init__(scheduler, options)
        self._marks = marks

    def next_step(self) -> tuple[list[Chunk], list[Admitted]]:
        chunks, admitted = super().next_step()
        marks = self._marks
        if marks.on:
            marks.scheduled_s = marks.clock()
            marks.load = load_of(chunks)
            marks.counted_s = marks.clock()
        return chunks, admitted


class _TimedModel:
    """Model wrapper that records the times of its calls."""

    def __init__(self, model: Any, marks: _Marks) -> None:
        self._model, self._marks = model, marks

    def __call__(self, **inputs: Any) -> Any:
        if not self._marks.on:
            return self._model(**inputs)
        self._marks.forward_s = self._marks.clock()
        output = self._model(**inputs)
        self._marks.forward_ends()
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class TimedGraphs:
    """Wrapper of recorded graphs that records the times of their launches and ends."""

    def __init__(self, graphs: DecodeGraphs, marks: _Marks) -> None:
        self._graphs, self._marks = graphs, marks

    def logits(
        self, decodes: Sequence[Chunk], pending: PendingTokens | None = None
    ) -> torch.Tensor:
        """Run a graph, and record its times."""
        logits = self._graphs.logits(decodes, pending)
        if self._marks.on:
            self._marks.forward_s = self._marks.clock()
            self._marks.forward_ends()
        return logits
