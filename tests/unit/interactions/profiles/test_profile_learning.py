"""Test each rule of the effective profile: declared, corrected, blended, learned; its bounds."""

import math
from dataclasses import replace

import pytest

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.profiles.profile_learning import (
    LearningOptions,
    as_declared,
    learn,
)
from fairserve.interactions.profiles.profile_statistics import CallSeen, RunSeen, figures_of

DAY_S = 86_400.0
OPTIONS = LearningOptions()
DECLARED = AppProfile((StageProfile(1000, 0, 100), StageProfile(3000, 0, 300)), 8.0)


def calls(number, tokens, *, stage=1, output=None):
    output = tokens // 10 if output is None else output
    return [CallSeen(stage, None, tokens, 0, output, 0.0) for _ in range(number)]


def runs(number, length, ended=True):
    return [RunSeen(length, ended, 0.0) for _ in range(number)]


def seen(*parts, ended=()):
    every = [call for part in parts for call in part]
    return figures_of(every, list(ended), min_samples=20, half_life_s=3 * DAY_S)


def learned(figures, *, declared=DECLARED, previous=None, now_s=0.0, options=OPTIONS):
    previous = as_declared(declared, 0.0, options) if previous is None else previous
    return learn(declared, previous, figures, now_s, options)


def sizes(held):
    return [round(stage.total_tokens, 3) for stage in held.profile.stages]


def test_without_observations_the_declaration_applies_within_its_trust():
    declared = replace(DECLARED, calls_per_interaction=500.0)
    held = as_declared(declared, 7.0, OPTIONS)
    assert held.profile.stages == declared.stages
    assert (held.profile.calls_per_interaction, held.profile.believed_tokens) == (32.0, 4800.0)
    assert (held.source, held.since_s) == ("declared", 7.0)
    assert learned(seen(calls(19, 100)), declared=declared, previous=held) is held


def test_twenty_calls_of_one_stage_scale_all_stages():
    held = learned(seen(calls(20, 100)))
    assert sizes(held) == pytest.approx([110, 330])
    assert held.source == "blended"
    assert (held.profile.seen_stages, held.learned_stages) == (1, 0)
    assert held.profile.believed_tokens == 4800.0


def test_trust_is_irrelevant_once_all_stages_were_observed():
    held = learned(seen(calls(20, 100), calls(20, 5000, stage=2)))
    assert held.profile.believed_tokens is None
    assert held.profile.believed(2, 1e6) == 1e6


def test_the_paper_trusts_every_declaration():
    options = replace(OPTIONS, believed_tokens=math.inf)
    assert as_declared(DECLARED, 0.0, options).profile.believed_tokens is None


def test_a_lower_usage_is_learned_immediately():
    """Stage 2 was declared at three times stage 1; both use the same."""
    held = learned(seen(calls(60, 1000), calls(20, 1000, stage=2)))
    assert sizes(held)[1] == pytest.approx(1100)
    # over both, a quarter less than declared was used: stage 1 uses more than that, and is on its
    # way
    corrected = 1100 * (80 * 1100) / (60 * 1100 + 20 * 3300)
    assert corrected < sizes(held)[0] < 1100


def test_a_higher_usage_is_learned_gradually():
    """The growth is geometric: halfway after half of the calls."""
    between = []
    for number in (20, 50, 80, 100):
        figures = seen(calls(number, 1000), calls(number, 1000, stage=2))
        between.append(sizes(learned(figures))[0])
    # in proportion 550 and 1650 were declared; 1100 are used
    assert between == sorted(between)
    assert between[1] == pytest.approx(math.sqrt(550 * 1100), rel=0.01)
    assert between[3] == pytest.approx(1100)


def test_an_oversized_declaration_starves_no_other_stage():
    """Scaled in proportion, stage 1 would be almost nothing and each call would cost a thousandfold."""
    declared = AppProfile((StageProfile(1000, 0, 0), StageProfile(1e6, 0, 0)))
    figures = seen(calls(20, 1000, output=0), calls(20, 1000, stage=2, output=0))
    held = learned(figures, declared=declared)
    assert sizes(held)[0] == pytest.approx(500 * 2**0.2, rel=0.001)
    assert sizes(held)[1] == 1000


def test_a_hundred_calls_and_runs_are_learned():
    held = learned(seen(calls(100, 500), calls(100, 700, stage=2), ended=runs(100, 2)))
    assert sizes(held) == [550, 770]
    assert (held.source, held.learned_stages, held.calls_learned) == ("learned", 2, True)
    assert held.profile.calls_per_interaction == 2
    assert held.profile.run_lengths == (2.0,) * 10
    assert "200 calls and 100 ended interactions seen" in held.reason


def test_a_stage_is_not_learned_before_the_previous_one():
    held = learned(seen(calls(99, 500), calls(100, 700, stage=2)))
    assert held.learned_stages == 0


@pytest.mark.parametrize(
    ("number", "length", "declared", "expected"),
    [
        (19, 2, 8, 8),  # too few calls
        (20, 2, 8, 2),  # fewer calls than declared: immediately
        (20, 80, 8, 8**0.8 * 80**0.2),
        (100, 80, 8, 80),
        (19, 2, 900, 32),  # limited by the trust
        (20, 80, 900, 80),
    ],
)
def test_calls_of_a_run_are_learned_within_bounds(number, length, declared, expected):
    declared = replace(DECLARED, calls_per_interaction=declared)
    held = learned(seen(calls(200, 1000), ended=runs(number, length)), declared=declared)
    assert held.profile.calls_per_interaction == pytest.approx(expected)


def test_the_time_out_is_always_the_declared_one():
    figures = seen(calls(100, 500), calls(100, 700, stage=2), ended=runs(100, 2))
    held = learned(figures)
    persistent = replace(DECLARED, idle_timeout_s=900.0)
    for what in (figures, seen()):
        after = learned(what, declared=persistent, previous=held)
        assert after.profile.idle_timeout_s == 900.0
        assert after.profile.stages == held.profile.stages


def grown(tokens, days, **options):
    """Return figures learned at 500 and then used at ``tokens`` tokens, ``days`` days later."""
    held = learned(seen(calls(100, 500, output=0)), options=replace(OPTIONS, **options))
    return learned(
        seen(calls(100, tokens, output=0)),
        previous=held,
        now_s=days * DAY_S,
        options=replace(OPTIONS, **options),
    )


def test_learned_figures_grow_by_a_daily_factor():
    assert sizes(grown(50_000, 0.5))[0] == pytest.approx(500 * math.sqrt(2))
    assert sizes(grown(50_000, 1.0))[0] == pytest.approx(1000)
    assert sizes(grown(50_000, 9.0))[0] == pytest.approx(1000), "a day at a time"
    assert "grows at most 2 times a day" in grown(50_000, 1.0).reason
    assert sizes(grown(900, 1.0))[0] == 900
    assert "grows" not in grown(900, 1.0).reason
    assert sizes(grown(50_000, 0.1, max_growth_per_day=math.inf))[0] == 50_000


def test_the_learned_number_of_calls_grows_slowly():
    figures = seen(calls(100, 500), ended=runs(100, 2))
    held = learned(figures)
    longer = seen(calls(100, 500), ended=runs(100, 50))
    after = learned(longer, previous=held, now_s=DAY_S)
    assert after.profile.calls_per_interaction == pytest.approx(4)
    assert "grows at most" in after.reason
    shorter = seen(calls(100, 500), ended=runs(100, 1))
    assert learned(shorter, previous=after, now_s=DAY_S).profile.calls_per_interaction == 1


@pytest.mark.parametrize(("tokens", "same"), [(500, True), (540, True), (460, True), (560, False)])
def test_a_small_change_is_ignored(tokens, same):
    held = learned(seen(calls(100, 500, output=0)))
    after = learned(seen(calls(100, tokens, output=0)), previous=held, now_s=DAY_S)
    assert (after is held) == same


def test_a_change_of_system_tokens_is_a_change():
    """System tokens weigh double: a profile that kept them would undercharge plain prompts."""
    system = [replace_tokens(call, 0, 1000) for call in calls(100, 1000)]
    plain = [replace_tokens(call, 1000, 0) for call in calls(100, 1000)]
    held = learned(seen(system))
    after = learned(seen(plain), previous=held)
    assert held.profile.stages[0].system_tokens == 1000
    assert after.profile.stages[0].system_tokens == 0


def replace_tokens(call, input_tokens, system_tokens):
    return call._replace(input_tokens=input_tokens, system_tokens=system_tokens)


@pytest.mark.parametrize(
    "declared",
    [
        (StageProfile(1, 0, 1), StageProfile(9e6, 0, 0)),
        (StageProfile(9e6, 9e6, 9e6), StageProfile(1e-300, 0, 0)),
        (StageProfile(1e-300, 0, 0), StageProfile(0, 0, 1)),
    ],
)
def test_every_declaration_can_be_corrected(declared):
    """The declaration is scaled by the observations and must remain a valid profile."""
    held = learned(seen(calls(20, 2000)), declared=AppProfile(declared))
    assert held.profile.believed_tokens == 4800.0
    assert held.profile.stages[0].total_tokens <= 2200.001
    everything = seen(calls(100, 2000), calls(100, 1, stage=2))
    assert sizes(learned(everything, declared=AppProfile(declared), previous=held))[0] == 2200


def test_agents_have_figures_only_from_observations():
    named = [call._replace(agent="x") for call in calls(30, 500)]
    profile = learned(seen(named, calls(30, 100))).profile
    assert profile.expected_output(1, "x") == 50
    assert profile.expected_output(1, None) < 50
    declared = replace(DECLARED, agents={"ghost": DECLARED.stages})
    assert "ghost" not in learned(seen(named), declared=declared).profile.agents


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_s": 0}, "window_s is 0; allowed: over 0"),
        ({"half_life_s": math.nan}, "half_life_s is nan"),
        ({"believed_tokens": -1}, "believed_tokens is -1"),
        ({"max_calls": 0}, "max_calls is 0; allowed: 1 or more"),
        ({"min_samples": 0}, "min_samples is 0"),
        ({"max_growth_per_day": 0.5}, "max_growth_per_day is 0.5"),
        ({"believed_calls": 0}, "believed_calls is 0"),
        ({"learned_after": 19}, r"learned_after is 19; allowed: min_samples \(20\) or more"),
        ({"min_change": 1.0}, "min_change is 1.0; allowed: 0 to under 1"),
    ],
)
def test_invalid_options_name_the_allowed_range(options, message):
    with pytest.raises(ValueError, match=message):
        LearningOptions(**options)
