"""Test doubling pauses: their bound, their start, and the effect of a generator."""

import math
import random

import pytest

from fairserve.engine.backoff import JITTER, Backoff


def test_pauses_double_up_to_the_bound():
    backoff = Backoff(0.5, 3.0)
    assert [backoff.pause_s(failures) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.pause_s(10**9) == 3.0
    assert Backoff(2.0, 2.0).pause_s(1) == 2.0


def test_a_generator_shortens_pauses_within_the_jitter(seed):
    backoff = Backoff(1.0, 8.0)
    pauses = {backoff.pause_s(4, rng) for rng in [random.Random(seed)] for _ in range(50)}
    assert len(pauses) > 40
    assert all(8.0 * (1 - JITTER) <= pause <= 8.0 for pause in pauses)
    assert backoff.pause_s(0, random.Random(seed)) == 0.0


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, math.inf)])
def test_invalid_bounds_are_rejected(bounds):
    with pytest.raises(ValueError, match="allowed"):
        Backoff(*bounds)
