"""Choose the version of a split by weighted rendezvous hashing of the run, without state.

A split divides the runs of one name among versions of a model by weight. Each version draws an
exponential number with its weight as rate from a stable hash (BLAKE2b) of split, version and key; the
smallest wins (weighted form of Thaler and Ravishankar's highest random weight). The same key gets the
same version in every process and after restarts, shares follow the weights, and a change of one weight
moves the minimum of runs: to a version that grew, or from one that shrank.

Weakness: shares are of runs, not of tokens, and hold on average only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

Targets = Mapping[str, float]
"""Models with their positive weights; a plain alias has one model."""


def pick_version(split: str, targets: Targets, key: str) -> str:
    """Return the version for a run. Raises ValueError if there is none."""
    if len(targets) == 1:
        return next(iter(targets))
    return min(targets, key=lambda version: (_draw(split, version, key, targets[version]), version))


def pick_available(split: str, targets: Targets, key: str, available: Collection[str]) -> str:
    """Return the version for a run among the available ones, or among all if none is available.

    Only runs of an unavailable version are moved, by weight.
    """
    there = {version: weight for version, weight in targets.items() if version in available}
    return pick_version(split, there or targets, key)


def _draw(split: str, version: str, key: str, weight: float) -> float:
    parts = (part.encode("utf-8", "surrogatepass") for part in (split, version, key))
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    # Never 0 or 1: the middle of one of 2^53 equal steps, which a float represents exactly.
    uniform = ((int.from_bytes(digest.digest(), "big") >> 11) + 0.5) / (1 << 53)
    return -math.log(uniform) / weight
