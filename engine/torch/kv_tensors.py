"""The memory of the KV cache: per layer one tensor of keys and one of values."""

from __future__ import annotations

import torch

from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.engine.torch.sequence import Sequence


class KvTensors:
    """Keys and values of all pages; page 0 is the pad page, which stays zero.

    ``keys[layer]`` and ``values[layer]`` have the shape [pages, 16, KV heads, head size].
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_size: int,
        usable_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.dtype, self.device = dtype, device
        shape = (usable_pages + 1, PAGE_TOKENS, kv_heads, head_size)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        # Targets of ``read``, one for keys and one for values, kept at the largest size used. Fresh
        # memory for every layer costs more in page faults than the copy itself.
        self._scratch = [torch.empty((0, *shape[1:]), dtype=dtype, device=device) for _ in "kv"]

    @staticmethod
    def bytes_per_token(layers: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of one token."""
        return 2 * layers * kv_heads * head_size * dtype.itemsize

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store keys and values [T, KV heads, head size] at T slots (page * 16 + offset)."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a [B, P] table of pages, each as [B, KV heads, P * 16, head size].

        Both are in memory that the next ``read`` overwrites.
        """
        batch, count = pages.shape
        flat = pages.flatten()
        gathered = []
        for index, pool in enumerate((self.keys[layer], self.values[layer])):
            if len(self._scratch[index]) < len(flat):
                self._scratch[index] = torch.empty(
                    (len(flat), *pool.shape[1:]), dtype=pool.dtype, device=pool.device
                )
            rows = self._scratch[index][: len(flat)]
            torch.index_select(pool, 0, flat, out=rows)
            rows = rows.view(batch, count * PAGE_TOKENS, *pool.shape[2:])
            gathered.append(rows.transpose(1, 2))
        return gathered[0], gathered[1]

    def scrub(self, pages: list[int]) -> None:
        """Zero pages that may contain NaN, which a masked row of the next owner would read."""
        for pool in (*self.keys, *self.values):
            pool[pages] = 0


def slots_of(sequence: Sequence, start: int, stop: int) -> list[int]:
    """Return the slots of the tokens ``start`` to ``stop`` of a running sequence."""
    pages = sequence.page_table
    return [
        int(pages[position // PAGE_TOKENS]) * PAGE_TOKENS + position % PAGE_TOKENS
        for position in range(start, stop)
    ]
