"""The next token of each sequence from its logits.

Sampling inverts the cumulative distribution at one random number, which comes from the sequence's
own generator: a seed fixes the output whatever runs beside it. (Floating-point sums differ a
little between batch shapes; a token changes only where that moves it over the drawn number.)
"""

from __future__ import annotations

import torch

from fairserve.engine.torch.sequence import Sequence

INVALID = -1
"""In place of a token where the logits are not all finite."""


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """One token id per row of ``logits`` [S, vocabulary], or ``INVALID``.

    Draws one number from the generator of every sequence that is not greedy.
    """
    finite = torch.isfinite(logits).all(dim=-1).tolist()
    chosen = [INVALID] * len(sequences)
    greedy: list[int] = []
    whole: list[int] = []
    nucleus: list[int] = []
    for row, sequence in enumerate(sequences):
        if not finite[row]:
            continue
        if sequence.params.temperature == 0:
            greedy.append(row)
        elif sequence.params.top_p < 1:
            nucleus.append(row)
        else:
            whole.append(row)
    if greedy:
        best = logits[greedy].argmax(dim=-1).tolist()
        for row, token in zip(greedy, best, strict=True):
            chosen[row] = token
    for rows, cut in ((whole, False), (nucleus, True)):
        if rows:
            drawn = _draw(logits[rows], [sequences[row] for row in rows], cut)
            for row, token in zip(rows, drawn, strict=True):
                chosen[row] = token
    return chosen


def _draw(logits: torch.Tensor, sequences: list[Sequence], cut: bool) -> list[int]:
    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    temperature = column([sequence.params.temperature for sequence in sequences])
    numbers = column([sequence.random.random() for sequence in sequences])
    # The largest becomes 0 first: a tiny temperature must not overflow.
    shifted = (logits - logits.amax(dim=-1, keepdim=True)).double()
    weights = torch.softmax(shifted / temperature, dim=-1)
    tokens = None
    if cut:
        weights, tokens = weights.sort(dim=-1, descending=True, stable=True)
        top_p = column([sequence.params.top_p for sequence in sequences])
        # A token stays while those before it have not reached top_p: the first always stays.
        before = weights.cumsum(dim=-1) - weights
        weights = weights.masked_fill(before >= top_p, 0.0)
    cumulative = weights.cumsum(dim=-1)
    # The numbers are at most 1 - 2**-53, whose product with a double is below that double: a
    # token of weight zero is never selected.
    target = numbers * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True)
    if tokens is not None:
        index = tokens.gather(-1, index)
    drawn: list[int] = index[:, 0].tolist()
    return drawn
