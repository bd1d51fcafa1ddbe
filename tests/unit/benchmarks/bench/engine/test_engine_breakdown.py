"""Breakdowns and bounds of steps equal values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.benchmarks.bench.engine.breakdown import break_down, full_decodes, full_prefills
from fairserve.benchmarks.bench.engine.figures import overhead
from fairserve.benchmarks.bench.engine.floor import (
    DeviceRates,
    ModelSizes,
    against_floor,
    decode_floor_s,
    prefill_flops,
)
from fairserve.engine.torch.bench.runner import PARTS, PassLoad, TimedStep


def step(*parts_s, prefill=0, pairs=0.0, sequences=0, held=0):
    return TimedStep(
        PassLoad(prefill, pairs, sequences, held), parts_s or (0.1, 0.2, 9.0, 0.3, 0.4)
    )


seconds = st.floats(1e-6, 10)


@given(st.lists(st.tuples(*[seconds] * len(PARTS)), min_size=1, max_size=20))
def test_the_parts_sum_to_the_step(parts):
    steps = [step(*each) for each in parts]
    found = break_down(steps)
    assert sum(found.shares.values()) == pytest.approx(1)
    total_s = sum(each.total_s for each in steps)
    for part, column in zip(PARTS, zip(*parts, strict=True), strict=True):
        assert found.shares[part] * total_s == pytest.approx(sum(column))
    assert 0 < found.overhead < 1
    assert found.steps == len(steps)


def test_overhead_excludes_compute_and_sampling():
    found = break_down([step(1.0, 2.0, 14.0, 2.0, 1.0)])
    assert found.overhead == pytest.approx(0.2)
    assert found.step_ms == 20_000
    assert found.parts_ms == {
        "schedule": 1000,
        "prepare": 2000,
        "forward": 14_000,
        "sample": 2000,
        "publish": 1000,
    }
    assert found.to_plain()["overhead_share"] == found.overhead


def test_the_figure_uses_the_largest_pure_decode_steps():
    steps = [
        step(5.0, 5.0, 1.0, 1.0, 5.0, prefill=64),
        step(5.0, 5.0, 1.0, 1.0, 5.0, prefill=3, sequences=32),
        step(1.0, 2.0, 95.0, 1.0, 1.0, sequences=32),
        step(5.0, 5.0, 1.0, 1.0, 5.0, sequences=31),
    ]
    assert full_decodes(steps) == [steps[2]]
    assert full_prefills(steps) == [steps[0]]
    assert full_decodes([]) == full_prefills([]) == []
    result = overhead([steps, [step(2.0, 2.0, 95.0, 0.0, 1.0, sequences=32)]])
    assert result.values == (0.04, 0.05)
    assert result.details["forward_ms"] == 95_000
    assert result.figure.name == "overhead_share_b32"
    assert result.figure.reached(result.value, result.figure.target)


SIZES = ModelSizes(
    parameters=1500,
    layer_parameters=1000,
    output_parameters=200,
    bytes_per_parameter=2,
    kv_bytes_per_token=10,
    pair_flops=4.0,
)
RATES = DeviceRates(copy_bytes_per_s=1000.0, matrix_flops_per_s=50_000.0)


def test_a_decode_step_moves_weights_and_held_tokens():
    assert SIZES.decode_weight_bytes == 2400
    assert decode_floor_s(SIZES, RATES, 60) == 3.0


def test_a_prefill_computes_products_and_attention():
    assert prefill_flops(SIZES, 10, 55) == 2 * 1000 * 10 + 4 * 55


def test_measured_steps_are_compared_with_the_bounds():
    steps = [
        step(0.0, 0.0, 1.0, 0.0, 0.0, prefill=10, pairs=1250.0),
        step(0.0, 0.0, 6.0, 0.0, 0.0, sequences=4, held=60),
    ]
    found = against_floor(SIZES, RATES, steps)
    assert found["decode"] == {
        "sequences": 4,
        "held_tokens": 60,
        "step_ms": 6000,
        "floor_ms": 3000,
        "over_floor": 2.0,
    }
    assert found["prefill"] == {"tokens": 10, "tokens_per_s": 10.0, "of_matrix_rate": 0.5}
    assert set(against_floor(SIZES, RATES, [])) == {"copy_gb_per_s", "matrix_tflops_per_s"}
