"""Keys of prompt prefixes: one chained 64-bit key per block; equal keys mean equal prefixes.

The hash is multilinear modulo 2^64: the sum over positions of (token + 1) * coefficient, with
secret random coefficients per position, so that crafted prompts collide with probability at most
2^-47 (tokens below 2^18) and a tenant cannot direct its calls to another tenant's match. A salt and
a LoRA adapter add a secret offset: each adapter of a model computes prefixes of its own. A match of
keys only chooses a worker or an order; engines compare tokens.

Cost: one pass over the tokens in numpy, about 5 us for 3,000 tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from fairserve.interactions.call import TokenIds

BlockKeys = Sequence[int]
"""Keys of the full blocks of a prompt, one per block; :class:`BlockHasher` returns ``array('Q')``."""

_COEFFICIENT_CHUNK = 16_384
_SALTS_KEPT = 4096


class BlockHasher:
    """Computes block keys of token ids. Equal seeds give equal keys; keep the seed secret."""

    def __init__(self, seed: int, block_tokens: int = 16) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}; allowed: 1 or more")
        self.block_tokens = block_tokens
        self._seed = seed
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._coefficients: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._ones: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        """Contribution of the ``+ 1`` of every token to each key."""
        self._offsets: dict[tuple[str, str], np.uint64] = {}

    def keys(self, token_ids: TokenIds, salt: str = "", adapter: str = "") -> array[int]:
        """Return one key per full block. ``token_ids`` has shape (tokens,)."""
        blocks = len(token_ids) // self.block_tokens
        if blocks == 0:
            return array("Q")
        if blocks > len(self._ones):
            self._extend(blocks)
        used = blocks * self.block_tokens
        sums = token_ids[:used].astype(np.uint64)
        sums *= self._coefficients[:used]
        np.add.accumulate(sums, out=sums)  # twice as fast as sums by block and then over blocks
        keys = sums[self.block_tokens - 1 :: self.block_tokens] + self._ones[:blocks]
        if salt or adapter:
            keys += self._offset(salt, adapter)
        return array("Q", keys.tobytes())

    def start(self, salt: str = "", adapter: str = "") -> int:
        """Return the key of the empty prefix, with which :meth:`extend` starts."""
        return int(self._offset(salt, adapter)) if salt or adapter else 0

    def extend(self, key: int, position: int, token_ids: TokenIds, every: int) -> list[int]:
        """Return the keys after each ``every`` tokens of a continuation of a prefix.

        The prefix has ``position`` tokens and the key ``key``. At block ends the keys equal those
        of :meth:`keys`.
        """
        end = position + len(token_ids)
        if end > len(self._coefficients):
            self._extend(-(-end // self.block_tokens))
        sums = token_ids.astype(np.uint64)
        sums += np.uint64(1)
        sums *= self._coefficients[position:end]
        np.add.accumulate(sums, out=sums)
        return cast("list[int]", (sums[every - 1 :: every] + np.uint64(key)).tolist())

    def _extend(self, blocks: int) -> None:
        while len(self._coefficients) < blocks * self.block_tokens:
            more = self._generator.integers(
                0, 2**64, size=_COEFFICIENT_CHUNK, dtype=np.uint64, endpoint=False
            )
            self._coefficients = np.concatenate([self._coefficients, more])
        sums = np.cumsum(self._coefficients, dtype=np.uint64)
        self._ones = sums[self.block_tokens - 1 :: self.block_tokens].copy()

    def _offset(self, salt: str, adapter: str) -> np.uint64:
        offset = self._offsets.get((salt, adapter))
        if offset is None:
            if len(self._offsets) >= _SALTS_KEPT:
                self._offsets.clear()
            named = f"{len(salt)} {salt}{adapter}" if adapter else salt
            digest = hashlib.blake2b(
                named.encode(), key=self._seed.to_bytes(32, "big", signed=True), digest_size=8
            ).digest()
            offset = self._offsets[salt, adapter] = np.uint64(int.from_bytes(digest, "big"))
        return offset
