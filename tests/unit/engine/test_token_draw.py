"""Cuts keep the specified tokens, and draws never choose a token of weight zero."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fairserve.engine.torch import token_draw
from fairserve.engine.torch.token_draw import cut_min_p, cut_top_k, cut_top_p, draw

SIZES = st.sampled_from([1, 2, 7, 255, 256, 257, 600, 1500])


@st.composite
def weights(draw_from):
    """Draw one row of at most 1 each: steep or flat, with zeros, ties and tiny numbers."""
    size = draw_from(SIZES)
    random = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    exponents = random.normal(0, draw_from(st.sampled_from([0.0, 0.1, 3.0, 30.0])), size)
    if draw_from(st.booleans()):
        exponents = np.round(exponents)
    row = np.exp(exponents - exponents.max()).astype(np.float32)
    row[random.random(size) < draw_from(st.sampled_from([0.0, 0.5, 0.95]))] = 0
    assume(row.any())
    return row / row.sum()


def after(cut, row, *arguments):
    """Return the row after a cut, in the middle of two others that must not affect it."""
    rows = torch.tensor(np.stack([np.ones_like(row), row, row[::-1]]))
    cut(rows, *arguments)
    return rows[1].numpy()


def column(value, dtype=torch.float64):
    return torch.full((3, 1), value, dtype=dtype)


@given(weights(), st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9]))
def test_top_p_keeps_the_smallest_sufficient_set(row, top_p):
    left = after(cut_top_p, row, column(top_p))
    kept = left > 0
    assert (left[kept] == row[kept]).all()
    smallest = left[kept].min()
    assert (kept == (row >= smallest)).all() or (row[~kept] < smallest).all()
    exact = row.astype(np.float64)
    assert exact[kept].sum() >= top_p * exact.sum() * (1 - 3e-6)
    # Without the smallest, which may be several of equal weight, the share is not reached.
    assert exact[row > smallest].sum() < top_p * exact.sum()


@given(
    weights(),
    st.sampled_from([1, 2, 5, 256, 1024, 5000]),
    st.sampled_from([None, 1.0, 0.3, 0.9]),
    st.booleans(),
)
def test_top_k_keeps_ties_and_top_p_applies_to_the_rest(row, top_k, top_p, sort):
    limit = token_draw._SORTED_K
    token_draw._SORTED_K = limit if sort else 0
    try:
        share = None if top_p is None else column(top_p)
        left = after(cut_top_k, row, column(top_k, torch.long), share, top_k)
    finally:
        token_draw._SORTED_K = limit
    least = -np.sort(-row)[min(top_k, len(row)) - 1]
    expected = np.where(row >= least, row, 0)
    if top_p is not None and top_p < 1:
        expected = after(cut_top_p, expected, column(top_p))
    assert (left == expected).all()


@given(weights(), st.sampled_from([0.001, 0.1, 0.5, 1.0]))
def test_min_p_is_a_share_of_the_largest(row, min_p):
    left = after(cut_min_p, row, column(min_p))
    assert (left == np.where(row >= np.float32(min_p) * row.max(), row, 0)).all()


NUMBERS = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 5e-324, 1 - 2**-53])


@given(st.lists(weights(), min_size=1, max_size=3), st.lists(NUMBERS, min_size=3, max_size=3))
def test_draws_invert_the_cumulative_distribution(rows, numbers):
    for row, number in zip(rows, numbers, strict=False):
        mates = torch.tensor(np.stack([row, row[::-1].copy()]))
        token, _ = draw(mates, torch.tensor([number, 0.5])).tolist()
        assert row[token] > 0
        ends = row.astype(np.float64).cumsum()
        target = number * ends[-1]
        assert ends[token] - row[token] - 1e-5 <= target <= ends[token] + 1e-5


def test_rounding_never_draws_a_weight_of_zero():
    masses = torch.tensor([[0.0, 0.5, 0.5, 0.0]] * 4)
    targets = torch.tensor([[-1e-17], [0.0], [1.0], [1 + 1e-15]], dtype=torch.float64)
    index, _ = token_draw._invert(masses, targets)
    assert index[:, 0].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("size", [3, 300])
def test_non_finite_rows_affect_no_other(size):
    rows = torch.full((3, size), torch.nan)
    rows[1] = 0
    rows[1, 2] = 0.5
    for cut in (
        lambda: cut_min_p(rows, column(0.5)),
        lambda: cut_top_k(rows, column(2, torch.long), column(0.5), 2),
        lambda: cut_top_p(rows, column(0.5)),
    ):
        cut()
        tokens = draw(rows, torch.full((3,), 0.9, dtype=torch.float64)).tolist()
        assert tokens[1] == 2
