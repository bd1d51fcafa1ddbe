"""The usage that corrects a whole declaration does not depend on rounding."""

import pytest

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions, as_declared, learn
from fairserve.interactions.profiles.profile_statistics import CallSeen, RunSeen, figures_of


@pytest.mark.parametrize("prompt_tokens", range(40, 80))
def test_usage_of_one_stage_applies_whatever_the_declared_split(prompt_tokens):
    declared = AppProfile((StageProfile(5000, 0, 200),), 9.0)
    calls = [CallSeen(1, None, prompt_tokens, 0, 7, 0.0)] * 24
    figures = figures_of(calls, [RunSeen(1, True, 0.0)] * 24, min_samples=20, half_life_s=1e9)
    options = LearningOptions()
    held = learn(declared, as_declared(declared, 0.0, options), figures, 0.0, options)
    (stage,) = held.profile.stages
    assert (stage.input_tokens, stage.output_tokens) == pytest.approx((prompt_tokens, 7))
