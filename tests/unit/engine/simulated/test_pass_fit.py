"""Fits recover known coefficients, none of them negative, and residuals show deviations."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from fairserve.engine.simulated.cost_model import CostModel, cost_model, pairs
from fairserve.engine.simulated.pass_fit import MeasuredPass, fit, knots_of

pytest.importorskip("scipy", reason="fits need scipy: pip install 'fairserve[bench]'")

SIZES = {"kv_capacity_tokens": 4096, "max_prefill_tokens": 512, "max_running": 32}


def costs(**changes):
    known = {
        "prefill_base_s": 0.004,
        "prefill_s_per_token": 8e-5,
        "prefill_s_per_pair": 1e-7,
        "decode_base_s": 0.003,
        "decode_s_per_sequence": 1.5e-4,
        "decode_s_per_held_token": 7e-7,
    }
    return CostModel("known", **SIZES, loop="mixed", **{**known, **changes})


def passes(model):
    """Return a grid of prefills, decode steps, and both at once, with the times of a known model."""
    made = []
    for sequences in (0, 1, 2, 4, 8, 16, 32):
        for held in (20, 500, 1500) if sequences else (0,):
            for tokens, cached in ((0, 0), (16, 0), (128, 0), (512 - sequences, 0), (100, 400)):
                if not tokens and not sequences:
                    continue
                attended = pairs(cached, tokens)
                held_tokens = held * sequences
                took_s = (
                    model.mixed_s(tokens, attended, sequences, held_tokens)
                    if tokens
                    else model.decode_s(sequences, held_tokens, 1)
                )
                made.append(MeasuredPass(took_s, tokens, attended, sequences, held_tokens))
    return made


def test_known_coefficients_are_recovered():
    fitted = fit("known", passes(costs()), **SIZES)
    for name, value in asdict(costs()).items():
        found = getattr(fitted.costs, name)
        if name.startswith(("prefill", "decode")):
            assert found == pytest.approx(value, rel=1e-6), name
        else:
            assert found == value, name
    assert fitted.worst_residual < 1e-6


def test_coefficients_that_are_zero_stay_zero():
    known = costs(prefill_s_per_pair=0.0, decode_s_per_held_token=0.0, prefill_base_s=0.0)
    fitted = fit("known", passes(known), **SIZES).costs
    assert fitted.prefill_s_per_pair == pytest.approx(0, abs=1e-12)
    assert fitted.decode_s_per_held_token == pytest.approx(0, abs=1e-12)
    assert fitted.prefill_s_per_token == pytest.approx(8e-5, rel=1e-6)


def test_noise_shows_in_the_residuals_more_than_in_coefficients():
    random = np.random.default_rng(1)
    noisy = [
        replace(each, took_s=each.took_s * factor)
        for each, factor in zip(passes(costs()), random.uniform(0.97, 1.03, 1000), strict=False)
    ]
    fitted = fit("noisy", noisy, **SIZES)
    assert fitted.costs.decode_s_per_sequence == pytest.approx(1.5e-4, rel=0.15)
    assert fitted.costs.prefill_s_per_token == pytest.approx(8e-5, rel=0.1)
    assert 0.005 < fitted.median_residual < 0.03
    assert fitted.median_residual < fitted.worst_residual < 0.1


def test_a_curve_is_recovered_for_nonlinear_times():
    curve = ((1, 0.02), (2, 0.04), (4, 0.038), (32, 0.08), (512, 0.6))
    known = costs(prefill_base_s=0.0, prefill_s_per_token=0.0, decode_base_s=0.0, pass_curve=curve)
    measured = passes(known)
    fitted = fit("known", measured, **SIZES, knots=[1, 2, 4, 32, 512])
    assert fitted.worst_residual < 1e-6
    assert [tokens for tokens, _ in fitted.costs.pass_curve] == [1, 2, 4, 32, 512]
    heights = [height for _, height in fitted.costs.pass_curve]
    assert heights == pytest.approx([0.02, 0.04, 0.038, 0.08, 0.6], rel=1e-6)
    assert fitted.costs.decode_s_per_sequence == pytest.approx(1.5e-4, rel=1e-6)
    straight = fit("straight", measured, **SIZES)
    assert straight.worst_residual > 0.2


def test_knots_are_measured_sizes_that_double():
    knots = knots_of(passes(costs()))
    assert knots[0] == 1
    assert knots[-1] == 512
    sizes = {each.prefill_tokens + each.sequences for each in passes(costs())}
    assert set(knots) <= sizes
    assert all(b >= 2 * a for a, b in pairwise(knots[:-1]))


def test_a_written_fit_is_read_as_a_cost_model(tmp_path):
    fitted = fit("mine", passes(costs()), **SIZES, knots=[1, 8, 64, 512], origin="here").costs
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(fitted)))
    assert cost_model(str(path)) == fitted
    assert fitted.loop == "mixed"


@pytest.mark.parametrize("keep", [0, 1])
def test_a_fit_needs_both_kinds_of_passes(keep):
    of_one_kind = [each for each in passes(costs()) if bool(each.prefill_tokens) == bool(keep)]
    with pytest.raises(ValueError, match="passes that prefill, and passes that only decode"):
        fit("x", of_one_kind, **SIZES)
