"""The engine with an observer: what it generated, and where the time of its steps went.

A subclass that calls the engine's own methods: the engine that serves has no hook and pays nothing.
A step is cut where the methods of its parts begin and end: ``schedule`` (who runs, admissions and their
events, pages), ``prepare`` (the batch as tensors), ``forward`` (the model), ``sample``, ``publish``
(tokens to their sequences, their text, the prefix cache, events).

While it records on a GPU, every step waits for the device after the forward pass, so that what is
computed there is not counted elsewhere; such steps are a little longer than others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fairserve.engine.simulated.cost_model import pairs
from fairserve.engine.torch.batch import Chunk
from fairserve.engine.torch.bench.runner import PassLoad, TimedStep
from fairserve.engine.torch.engine import Engine, EngineOptions
from fairserve.engine.torch.events import EngineEvent
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.sequence import Sequence
from fairserve.scheduling.base import LocalScheduler


def load_of(chunks: list[Chunk]) -> PassLoad:
    """Counts of a pass over these chunks, before it has run."""
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
    """An engine for benchmarks. ``clock`` gives seconds."""

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: LocalScheduler,
        options: EngineOptions,
        emit: Callable[[list[EngineEvent]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = _TimedModel(loaded.model, loaded.device, clock)
        super().__init__(replace(loaded, model=self._model), scheduler, options, emit)
        self.outputs: dict[str, tuple[int, ...]] = {}
        """Tokens of every sequence that ended, by its id, until somebody takes them."""
        self.steps: list[TimedStep] = []
        """What was recorded."""
        self._clock = clock
        self._recording = False
        self._load = load_of([])
        self._scheduled_s = self._run_s = self._sampled_s = 0.0

    @property
    def recording(self) -> bool:
        """Whether steps are recorded from now on."""
        return self._recording

    @recording.setter
    def recording(self, on: bool) -> None:
        self._recording = self._model.waits = on

    def step(self) -> bool:
        """See the engine."""
        if not self._recording:
            return super().step()
        begin_s = self._clock()
        if not super().step():
            return False
        end_s = self._clock()
        model = self._model
        parts_s = (
            self._scheduled_s - begin_s,
            model.begin_s - self._run_s,
            model.end_s - model.begin_s,
            self._sampled_s - model.end_s,
            end_s - self._sampled_s,
        )
        self.steps.append(TimedStep(self._load, parts_s))
        return True

    def _schedule(self) -> list[Chunk]:
        chunks = super()._schedule()
        if self._recording:
            self._scheduled_s = self._clock()
            self._load = load_of(chunks)
        return chunks

    def _run(self, chunks: list[Chunk]) -> dict[str, int]:
        self._run_s = self._clock()
        tokens = super()._run(chunks)
        self._sampled_s = self._clock()
        return tokens

    def _end(self, sequence: Sequence, keep: bool) -> None:
        self.outputs[sequence.sequence_id] = tuple(sequence.tokens[sequence.prompt_tokens :])
        super()._end(sequence, keep)


class _TimedModel:
    """Calls a model, and notes when. ``waits``: for the GPU, too."""

    def __init__(self, model: Any, device: torch.device, clock: Callable[[], float]) -> None:
        self._model, self._clock = model, clock
        self._on_gpu = device.type == "cuda"
        self.waits = False
        self.begin_s = self.end_s = 0.0

    def __call__(self, **inputs: Any) -> Any:
        self.begin_s = self._clock()
        output = self._model(**inputs)
        if self.waits and self._on_gpu:
            torch.cuda.synchronize()
        self.end_s = self._clock()
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
