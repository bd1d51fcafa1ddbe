"""transformers' ``generate`` over one padded batch as a benchmark runs it.

All requests start at once, padded on the left to the longest prompt, and all run until the longest
output ends. Tokens of padding and beyond the requested outputs do not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from fairserve.engine.torch.bench.runner import RunnerOutcome, RunnerRequest

_PAD = 0


class Generate:
    """Runner over a model of the caller (see :func:`~.shapes.twin`), without a cache between runs."""

    name = "generate"

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def run(self, requests: Sequence[RunnerRequest]) -> RunnerOutcome:
        """Run all requests; see :class:`~.runner.Runner`."""
        longest = max(len(request.prompt) for request in requests)
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max(request.output_tokens for request in requests),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=_PAD,
        )
        watch = _FirstStep()
        begin_s = time.perf_counter()
        ids = torch.full((len(requests), longest), _PAD)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        output = self._model.generate(
            ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
        rows: list[list[int]] = output[:, longest:].tolist()
        wall_s = time.perf_counter() - begin_s
        return RunnerOutcome(
            wall_s,
            (watch.at_s - begin_s,) * len(requests),
            tuple(
                tuple(row[: request.output_tokens])
                for row, request in zip(rows, requests, strict=True)
            ),
        )

    def close(self) -> None:
        """Do nothing: the caller owns the model."""
        del self._model


class _FirstStep(StoppingCriteria):
    """Criterion that never stops, and records the time of the first tokens."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **more: Any) -> Any:
        """Record the time of the first step; called after every step."""
        if not self.at_s:
            if input_ids.is_cuda:
                torch.cuda.synchronize()
            self.at_s = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
