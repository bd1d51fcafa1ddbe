"""Test curves of pass times: interpolation between points, and invalid files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.simulated.cost_model import CostModel, checked, seconds_at

CURVE = ((2, 1.0), (4, 3.0), (8, 5.0))


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 3), (6, 4), (8, 5), (10, 6)]
)
def test_curves_interpolate_and_extrapolate(tokens, expected):
    assert seconds_at(CURVE, tokens) == expected


def test_times_are_zero_without_a_curve_and_never_negative():
    assert seconds_at((), 5) == 0
    assert seconds_at(((1, 2.0), (2, 1.0)), 9) == 0


@given(
    st.dictionaries(st.integers(1, 10**6), st.floats(0, 1e9), min_size=2, max_size=20),
    st.integers(0, 2 * 10**6),
)
def test_curves_pass_through_every_point_and_stay_between_them(heights, tokens):
    curve = checked(sorted(heights.items()), 1e9)
    least, most = min(heights.values()), max(heights.values())
    rounding = 1e-9 * (most + 1)
    for at, height in curve:
        assert seconds_at(curve, at) == pytest.approx(height, abs=rounding)
    if tokens <= curve[-1][0]:
        assert least - rounding <= seconds_at(curve, tokens) <= most + rounding


@pytest.mark.parametrize(
    "points",
    [
        5,
        "12",
        None,
        [[1, 0.5]],
        [[1, 0.5], [1, 0.5]],
        [[2, 0.5], [1, 0.5]],
        [[0, 0.5], [1, 0.5]],
        [[1, 0.5], [2]],
        [[1, 0.5], [2, -1]],
        [[1, 0.5], [2, float("nan")]],
        [[1, 0.5], [2, True]],
        [[1, 0.5], [2.0, 1]],
        [[1, 0.5], [True, 1]],
        [[1, 0.5], 3],
    ],
)
def test_invalid_curves_are_rejected(points):
    with pytest.raises(ValueError, match=r"pass_curve .* allowed: pairs of tokens"):
        checked(points, 1e9)


def costs(**changes):
    return CostModel("c", 1000, 0.5, 0.25, 0.125, 2.0, 0.5, 0.0625, **changes)


def test_a_curve_adds_to_the_cost_of_the_pass():
    plain, curved = costs(), costs(pass_curve=CURVE)
    assert curved.prefill_s(6, 10) == plain.prefill_s(6, 10) + 4
    assert curved.decode_s(3, 16, 1) == plain.decode_s(3, 16, 1) + 2
    assert curved.decode_s(3, 16, 5) == plain.decode_s(3, 16, 5) + 5 * 2
    assert curved.mixed_s(5, 10, 3, 16) == plain.mixed_s(5, 10, 3, 16) + 5


def test_a_mixed_pass_costs_its_prefill_and_decodes():
    assert costs().mixed_s(4, 10, 3, 16) == costs().prefill_s(4, 10) + 3 * 0.5 + 16 * 0.0625
    assert costs().mixed_s(4, 10, 0, 0) == costs().prefill_s(4, 10)


def test_a_decode_step_may_take_its_time_from_the_curve_alone():
    values = {"decode_base_s": 0.0, "decode_s_per_sequence": 0.0}
    others = {
        "kv_capacity_tokens": 10,
        "prefill_base_s": 0.0,
        "prefill_s_per_token": 0.0,
        "prefill_s_per_pair": 0.0,
        "decode_s_per_held_token": 0.0,
    }
    assert CostModel("c", **values, **others, pass_curve=CURVE).decode_s(1, 0, 1) == 1.0
    with pytest.raises(ValueError, match="a decode step takes no time"):
        CostModel("c", **values, **others, pass_curve=[[1, 0], [2, 1]])
