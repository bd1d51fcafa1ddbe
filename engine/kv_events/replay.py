"""Batches that a publisher can send again, and the state of the cache before the oldest of them.

The last ``steps`` batches are kept. Older ones are merged into the resulting state; a reader that
requests them first gets that state as one batch that begins with ``AllBlocksCleared``. So a replay
always leads to the current state, whereas vLLM drops old batches and its reader starts with an
empty view.

Memory: the batches, plus about 1 kB per block cached before them. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairserve.engine.kv_events.dialect import (
    DEVICE_MEDIUM,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KvBatch,
    KvEvent,
    decode,
    encode,
)


@dataclass(frozen=True, slots=True)
class _Block:
    parent: BlockHash | None
    token_ids: Sequence[int]
    extra: list[Any] | None


class ReplayBuffer:
    """Payloads by sequence number, from the oldest that is not merged to the latest."""

    def __init__(self, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"steps is {steps}; it must be at least 1")
        self._steps = steps
        self._batches: deque[tuple[int, bytes]] = deque()
        self._before: dict[BlockHash, _Block] = {}
        """Blocks that were cached before the oldest batch, parents before children."""
        self._folded: tuple[int, float] | None = None
        """Sequence number and time of the last merged batch."""

    def append(self, sequence: int, payload: bytes) -> None:
        """Keep a published batch."""
        self._batches.append((sequence, payload))
        if len(self._batches) > self._steps:
            oldest, left = self._batches.popleft()
            batch = decode(left)
            self._folded = (oldest, batch.ts)
            for event in batch.events:
                self._fold(event)

    def since(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield the batches from ``start`` on; merged ones as one, with the last one's number."""
        if self._folded is not None and start <= self._folded[0]:
            sequence, ts = self._folded
            yield sequence, encode(KvBatch(ts, self._state()))
        for sequence, payload in self._batches:
            if sequence >= start:
                yield sequence, payload

    def _fold(self, event: KvEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self._before.clear()
        elif isinstance(event, BlockRemoved):
            for name in event.block_hashes:
                self._before.pop(name, None)
        else:
            parent, size = event.parent_block_hash, event.block_size
            for index, name in enumerate(event.block_hashes):
                tokens = event.token_ids[index * size : (index + 1) * size]
                extra = event.extra_keys[index] if event.extra_keys else None
                self._before[name] = _Block(parent, tokens, extra)
                parent = name

    def _state(self) -> list[KvEvent]:
        """Return the state as events: cleared, then one event per run of consecutive blocks."""
        events: list[KvEvent] = [AllBlocksCleared()]
        run: list[tuple[BlockHash, _Block]] = []
        for name, block in self._before.items():
            if run and block.parent != run[-1][0]:
                events.append(_stored(run))
                run = []
            run.append((name, block))
        if run:
            events.append(_stored(run))
        return events


def _stored(run: list[tuple[BlockHash, _Block]]) -> BlockStored:
    extra = [block.extra for _, block in run]
    return BlockStored(
        block_hashes=[name for name, _ in run],
        parent_block_hash=run[0][1].parent,
        token_ids=[token for _, block in run for token in block.token_ids],
        block_size=len(run[0][1].token_ids),
        medium=DEVICE_MEDIUM,
        extra_keys=extra if any(each is not None for each in extra) else None,
    )
