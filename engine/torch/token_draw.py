"""Draws one token per row of weights after cutting off unlikely ones, on their device.

A cut is a threshold that removes lighter tokens, so tokens as heavy as the last kept one are kept,
too (as in vLLM's top_k). So the result does not depend on the order of ties.

The vocabulary is never sorted. The threshold of ``top_p`` is found bit by bit, ten at a time:
weights are floats of at most 1, whose bit patterns are ordered like their values, so a histogram of
the masses by the upper bits shows in which of 1,024 ranges the threshold is, and two more locate it
in that range. This takes equally long for flat and steep distributions, so no call can slow down
the rest of its batch by its temperature.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

_SORTED_K = 1024
"""Maximum k for which the k largest weights are found by sorting."""
_BLOCK = 256
_BELOW_ONE = 1 - 2**-53
_ROUNDING = 1e-6
"""Relative tolerance of sums of weights when compared with top_p."""
_LEVEL_BITS = 10
_CPU_ROWS = 8


def cut_min_p(weights: torch.Tensor, min_p: torch.Tensor) -> None:
    """Zero the weights [S, V] below ``min_p`` [S, 1] of the largest in their row."""
    _cut(weights, min_p.float() * weights.amax(dim=-1, keepdim=True))


def cut_top_k(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor | None, largest_k: int
) -> None:
    """Zero the weights [S, V] outside the ``top_k`` [S, 1] largest, then outside ``top_p`` of these.

    ``largest_k`` is the maximum of ``top_k``. Without ``top_p`` the second cut is skipped.
    """
    largest_k = min(largest_k, weights.shape[-1])
    if largest_k > _SORTED_K:
        _cut(weights, _threshold(weights, torch.ones_like(weights), top_k))
        if top_p is not None:
            cut_top_p(weights, top_p)
        return
    largest = weights.topk(largest_k).values
    last = (top_k - 1).clamp(max=largest_k - 1)
    _cut(weights, largest.gather(-1, last))
    if top_p is not None:
        # A token stays while those before it have not reached top_p: the first always stays.
        before = largest.cumsum(dim=-1, dtype=torch.float64) - largest
        kept = (before < _wanted(weights, top_p)).sum(dim=-1, keepdim=True)
        _cut(weights, largest.gather(-1, (kept - 1).clamp(min=0)))


def cut_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> None:
    """Zero the weights [S, V] outside the largest ones that reach ``top_p`` [S, 1] of their sum."""
    # On a CPU a few rows at a time: the tables of a large batch would be fresh memory in every
    # step, whose page faults cost more than the work on them.
    rows = _CPU_ROWS if weights.is_cpu else len(weights)
    for part, share in zip(torch.split(weights, rows), torch.split(top_p, rows), strict=True):
        _cut(part, _threshold(part, part, _wanted(part, share)))


def draw(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution of each row: weights [S, V], numbers [S] -> tokens [S].

    The numbers are in [0, 1). A token of weight zero is never drawn. First a block of tokens is
    found by the sums of all blocks, then the token in it, since a running sum over a whole
    vocabulary is slow. A row that is not finite gets an arbitrary token
    of the vocabulary.
    """
    vocabulary = weights.shape[-1]
    missing = -vocabulary % _BLOCK
    if missing:
        weights = pad(weights, (0, missing))
    blocks = weights.view(len(weights), -1, _BLOCK)
    sums = blocks.sum(dim=-1)
    target = numbers[:, None] * sums.sum(dim=-1, keepdim=True, dtype=torch.float64)
    block, rest = _invert(sums, target)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0]
    offset, _ = _invert(inside, rest)
    return (block * _BLOCK + offset)[:, 0].clamp(max=vocabulary - 1)


def _cut(weights: torch.Tensor, threshold: torch.Tensor) -> None:
    weights.masked_fill_(weights < threshold, 0.0)


def _wanted(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the mass of ``top_p`` [S, 1]; infinite where it keeps all."""
    total = weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    return torch.where(top_p < 1, top_p * total * (1 - _ROUNDING), torch.inf)


def _threshold(weights: torch.Tensor, masses: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the largest weight such that all weights at or above it have the mass ``wanted`` [S, 1].

    0 if all masses together do not reach it. Weights and masses are [S, V], the result [S, 1].
    """
    bits = weights.view(torch.int32)
    found = torch.zeros_like(wanted, dtype=torch.int32)
    above = torch.zeros_like(wanted, dtype=torch.float64)
    ranges = 1 << _LEVEL_BITS
    for shift in (2 * _LEVEL_BITS, _LEVEL_BITS, 0):
        inside = (bits >> (shift + _LEVEL_BITS)) == found
        place = ((bits >> shift) & (ranges - 1)).long()
        histogram = torch.zeros(len(bits), ranges, dtype=torch.float64, device=bits.device)
        histogram.scatter_add_(-1, place, (masses * inside).double())
        reached = above + histogram.flip(-1).cumsum(dim=-1).flip(-1)
        last = ((reached >= wanted).sum(dim=-1, keepdim=True) - 1).clamp(min=0)
        above = (reached - histogram).gather(-1, last)
        found = (found << _LEVEL_BITS) | last.int()
    return found.view(torch.float32)


def _invert(masses: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the running sum of ``masses`` [S, N] passes ``target`` [S, 1], and the rest.

    A target within rounding of the ends is moved inside them, where no mass is zero: the running
    sum passes a target of 0 at the first mass, and one below its end at the last one.
    """
    ends = masses.cumsum(dim=-1, dtype=torch.float64)
    target = torch.minimum(target.clamp(min=0.0), ends[:, -1:] * _BELOW_ONE)
    index = torch.searchsorted(ends, target, right=True).clamp(max=masses.shape[-1] - 1)
    return index, target - (ends.gather(-1, index) - masses.gather(-1, index))
