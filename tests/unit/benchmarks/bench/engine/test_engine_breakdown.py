"""Breakdowns of steps equal values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.benchmarks.bench.engine.breakdown import break_down, full_decodes
from fairserve.benchmarks.bench.engine.figures import overhead
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
    assert full_decodes([]) == []
    result = overhead([steps, [step(2.0, 2.0, 95.0, 0.0, 1.0, sequences=32)]])
    assert result.values == (0.04, 0.05)
    assert result.details["forward_ms"] == 95_000
    assert result.figure.name == "overhead_share_b32"
    assert result.figure.reached(result.value, result.figure.target)
