"""Mergeable quantiles: t-digests (Dunning and Ertl) of the datasketches library.

A digest has a few hundred bytes for any number of values. It is exact for a few values; otherwise its
rank error is well below 1 % at the median and much smaller at the ends. It depends on the order of the
values, so they are sorted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from datasketches import tdigest_double

COMPRESSION = 100


def digest_of(values: Sequence[float]) -> bytes | None:
    """Return the digest of values in any order; None without values."""
    if not values:
        return None
    digest = tdigest_double(COMPRESSION)
    digest.update(np.sort(np.asarray(values, dtype=np.float64)))
    return bytes(digest.serialize())


def merged(digests: Iterable[bytes | None]) -> bytes | None:
    """Return the digest of all values, merged in this order; None without values."""
    present = [digest for digest in digests if digest is not None]
    if len(present) < 2:
        return bytes(present[0]) if present else None
    total = tdigest_double(COMPRESSION)
    for digest in present:
        total.merge(tdigest_double.deserialize(digest))
    return bytes(total.serialize())


def quantiles(digest: bytes | None, ranks: Sequence[float]) -> tuple[float, ...] | None:
    """Return the values at ranks between 0 and 1; None without values."""
    if digest is None:
        return None
    found = tdigest_double.deserialize(digest)
    return tuple(float(found.get_quantile(rank)) for rank in ranks)


def weight(digest: bytes | None) -> int:
    """Return the number of values in a digest."""
    return 0 if digest is None else int(tdigest_double.deserialize(digest).get_total_weight())
