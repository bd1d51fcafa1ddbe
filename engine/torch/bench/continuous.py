"""transformers' continuous batching as a benchmark runs it, sized like our engine.

It runs in a separate thread, which is started before the timed part of a run and ended after it,
since its idle helpers would slow the other engines (see ``host_threads``); its memory is kept. Its
interface changes between versions: its errors are raised as an UnavailableError with their message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fairserve.engine.torch.bench.runner import (
    RunnerLimits,
    RunnerOutcome,
    RunnerRequest,
    RunnerUnavailableError,
)

BLOCK_TOKENS = 32
"""Block size of its KV cache. The default of 256 shares less, and wastes memory of short sequences."""
_POLL_S = 1.0
_FIRST = RunnerRequest((0,), 1)
"""Request that runs first, untimed, while the thread creates its helpers."""


class ContinuousBatching:
    """Manager of a model of the caller; see :func:`~.shapes.twin`."""

    name = "transformers cb"

    def __init__(self, model: Any, limits: RunnerLimits) -> None:
        """Create a manager. Raises UnavailableError."""
        self._model = model
        try:
            from transformers import GenerationConfig
            from transformers.generation.configuration_utils import ContinuousBatchingConfig

            self._configs = {
                "generation_config": GenerationConfig(  # type: ignore[no-untyped-call]
                    do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1
                ),
                "continuous_batching_config": ContinuousBatchingConfig(
                    block_size=BLOCK_TOKENS,
                    num_blocks=limits.kv_tokens // BLOCK_TOKENS,
                    max_batch_tokens=limits.token_budget,
                    max_requests_per_batch=limits.max_batch,
                ),
            }
            self.run([_FIRST])
        except RunnerUnavailableError:
            raise
        except Exception as error:  # another version's interface may fail in any way
            raise RunnerUnavailableError(_says(error)) from error

    def run(self, requests: Sequence[RunnerRequest]) -> RunnerOutcome:
        """Run all requests; see :class:`~.runner.Runner`."""
        try:
            # The manager's memory is persistent, not its thread.
            with self._model.continuous_batching_context_manager(
                **self._configs, persistent_manager=True
            ) as manager:
                _run(manager, [_FIRST])
                return _run(manager, requests)
        except RunnerUnavailableError:
            raise
        except Exception as error:
            raise RunnerUnavailableError(_says(error)) from error

    def close(self) -> None:
        """Release the memory."""
        self._model.destroy_cached_continuous_batching_manager()


def _run(manager: Any, requests: Sequence[RunnerRequest]) -> RunnerOutcome:
    prompts = [list(request.prompt) for request in requests]
    begin_s = time.perf_counter()
    names = [
        manager.add_request(
            prompt,
            max_new_tokens=request.output_tokens,
            record_timestamps=True,
            eos_token_id=-1,
        )
        for prompt, request in zip(prompts, requests, strict=True)
    ]
    results: dict[str, Any] = {}
    while len(results) < len(requests):
        result = manager.get_result(timeout=_POLL_S)
        if result is None:
            if not manager.is_running():
                status = getattr(manager, "background_thread_status", None)
                raise RunnerUnavailableError(_says(getattr(status, "fatal_error", None)))
            continue
        if result.error is not None:
            raise RunnerUnavailableError(str(result.error))
        if result.is_finished():
            results[result.request_id] = result
    wall_s = time.perf_counter() - begin_s
    ordered = [results[name] for name in names]
    return RunnerOutcome(
        wall_s,
        tuple(result.timestamps[0] - begin_s for result in ordered),
        tuple(tuple(result.generated_tokens) for result in ordered),
    )


def _says(error: object) -> str:
    text = str(error or "its thread ended")
    if isinstance(error, MemoryError):
        text += "; on a CPU it needs psutil to see any memory: pip install 'fairserve[bench]'"
    return text if error is None else f"{type(error).__name__}: {text}"
