"""Decode-only steps as CUDA graphs: one launch instead of thousands.

Graphs are recorded for a few batch sizes; a step uses the next larger one and pads it. The inputs
of a step are in static buffers, filled on the host and copied to the device in one piece; the host
does not wait for the device.

A padding row decodes token 0 at position 0 into the pad page, which no kernel reads.

Cost per step: O(rows * pages of the longest context) on the host, a few bytes each. Recording takes
several forward passes per size at start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fairserve.engine.torch.batch import PagedState
from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.kernel_attention import KernelPlan, page_tables
from fairserve.engine.torch.kv_tensors import KvTensors
from fairserve.engine.torch.launched_step import KNOWN, PendingTokens, sources_of
from fairserve.engine.torch.page_pool import PAD_PAGE, PAGE_TOKENS

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PagedState], torch.Tensor]
"""Forward pass: ``(input_ids, positions, logit_rows, state) -> logits`` [rows, vocabulary]."""

_WARM_UPS = 3
_IDS, _POSITIONS, _SLOTS, _LENGTHS, _SOURCES = range(5)


def graph_sizes(max_batch: int) -> list[int]:
    """Return 1, 2, 4, then every 8 up to 64, then steps of an eighth, up to ``max_batch`` itself."""
    sizes = [1, 2, 4]
    while sizes[-1] < max_batch:
        sizes.append((sizes[-1] // 8 + max(1, sizes[-1] // 64)) * 8)
    return [*(size for size in sizes if size < max_batch), max_batch]


class DecodeGraphs:
    """Graphs of all sizes. ``max_pages`` is the maximum number of pages of a sequence.

    Without CUDA nothing is recorded and every step is a plain forward pass, for tests.
    """

    def __init__(self, forward: Forward, kv: KvTensors, max_batch: int, max_pages: int) -> None:
        self._memory = torch.cuda.graph_pool_handle() if kv.device.type == "cuda" else None
        self._steps: dict[int, _Step] = {}
        for size in reversed(graph_sizes(max_batch)):  # largest first: others reuse its memory
            self._steps[size] = _Step(forward, kv, size, max_pages, self._memory)
        self._sizes = sorted(self._steps)

    def logits(
        self, decodes: Sequence[Chunk], pending: PendingTokens | None = None
    ) -> torch.Tensor:
        """Return logits [decodes, vocabulary] in static memory; the next step of that size reuses it.

        ``pending`` contains the input tokens that decodes still lack. The step before the last one
        must have ended.
        """
        size = next(size for size in self._sizes if size >= len(decodes))
        return self._steps[size].run(decodes, pending)


class _Step:
    def __init__(
        self, forward: Forward, kv: KvTensors, size: int, max_pages: int, memory: Any
    ) -> None:
        device = kv.device
        self._on_gpu = device.type == "cuda"
        self._rows = torch.zeros((5, size), dtype=torch.int64, device=device)
        self._table = torch.full((size, max_pages), PAD_PAGE, dtype=torch.int32, device=device)
        self._lengths = torch.ones(size, dtype=torch.int32, device=device)
        entries = size * max_pages
        # Two of each, used alternately: the last step may not have fetched its inputs yet.
        self._hosts = [
            (
                torch.zeros((5, size), dtype=torch.int64, pin_memory=self._on_gpu),
                torch.zeros(entries, dtype=torch.int32, pin_memory=self._on_gpu),
            )
            for _ in range(2)
        ]
        self._sent_table = torch.zeros(entries, dtype=torch.int32, device=device)
        self._every_row = torch.arange(size, device=device)
        self._state = PagedState(kv, self._rows[_SLOTS], KernelPlan(kv, self._table, self._lengths))
        self._forward = forward
        self._graph: torch.cuda.CUDAGraph | None = None
        if self._on_gpu:
            self._record(memory)

    def _pass(self) -> torch.Tensor:
        self._lengths.copy_(self._rows[_LENGTHS])
        rows = self._rows
        return self._forward(rows[_IDS][None], rows[_POSITIONS][None], self._every_row, self._state)

    def _record(self, memory: Any) -> None:
        self._rows[_LENGTHS] = 1
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self._pass()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=memory):
            self._logits = self._pass()

    def run(self, decodes: Sequence[Chunk], pending: PendingTokens | None) -> torch.Tensor:
        """Fill the buffers and run the graph."""
        count = len(decodes)
        self._hosts.reverse()
        host_rows, host_table = self._hosts[0]
        rows = host_rows.numpy()
        positions = np.array([chunk.sequence.computed_tokens for chunk in decodes])
        tables = page_tables(decodes)
        rows[:] = 0
        rows[_LENGTHS] = 1
        rows[_IDS, :count] = [chunk.sequence.tokens[-1] for chunk in decodes]
        rows[_POSITIONS, :count] = positions
        pages = tables[np.arange(count), positions // PAGE_TOKENS].astype(np.int64)
        rows[_SLOTS, :count] = pages * PAGE_TOKENS + positions % PAGE_TOKENS
        rows[_LENGTHS, :count] = positions + 1
        sources = sources_of(decodes, pending)
        if sources is not None:
            rows[_SOURCES] = KNOWN
            rows[_SOURCES, :count] = sources
        # Only the rows and columns in use are copied, as one piece of memory.
        used = tables.size
        host_table.numpy()[:used] = tables.ravel()
        self._rows.copy_(host_rows, non_blocking=True)
        self._sent_table[:used].copy_(host_table[:used], non_blocking=True)
        self._table[:count, : tables.shape[1]] = self._sent_table[:used].view(tables.shape)
        if pending is not None and sources is not None:
            self._rows[_IDS] = pending.resolve(self._rows[_IDS], self._rows[_SOURCES])
        if self._graph is None:
            return self._pass()[:count]
        self._graph.replay()
        return self._logits[:count]
