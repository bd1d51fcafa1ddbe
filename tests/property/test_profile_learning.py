"""For any declaration and usage, the effective profile grows slowly and falls immediately."""

import math

from histories import histories
from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions, as_declared, learn
from fairserve.interactions.profiles.profile_statistics import CallSeen, RunSeen, figures_of

DAY_S = 86_400.0
TOKENS = st.sampled_from([0, 1, 50, 400, 3000, 100_000])
STAGE = st.builds(StageProfile, st.floats(0, 9e6), st.floats(0, 9e6), st.floats(1e-9, 9e6))
DECLARED = st.builds(
    AppProfile,
    st.lists(STAGE, min_size=1, max_size=4).map(tuple),
    calls_per_interaction=st.floats(1, 1e4),
)
OPTIONS = st.builds(
    LearningOptions,
    min_samples=st.integers(1, 5),
    learned_after=st.integers(5, 8),
    max_growth_per_day=st.sampled_from([1.0, 1.5, 2.0, 10.0]),
    min_change=st.sampled_from([0.0, 0.1, 0.5]),
    believed_tokens=st.sampled_from([100.0, 4800.0, math.inf]),
)
CALL = st.builds(
    CallSeen,
    st.integers(1, 4),
    st.sampled_from([None, "x"]),
    TOKENS,
    TOKENS,
    TOKENS,
    st.floats(0, 1e6),
    st.sampled_from([0, 50, 3000]),
)
RUN = st.builds(RunSeen, st.integers(1, 50), st.booleans(), st.floats(0, 1e6), TOKENS)
LOOK = st.tuples(st.floats(0, 3 * DAY_S), histories(CALL, 30), histories(RUN, 12), DECLARED)
"""Time since the last review, observations at this one, and the declaration of that time."""


def total(held, number):
    return held.profile.stage(number).total_tokens


@given(DECLARED, OPTIONS, st.lists(LOOK, min_size=1, max_size=8))
def test_learned_figures_never_grow_faster_than_allowed(declared, options, looks):
    now_s = 0.0
    held = as_declared(declared, now_s, options)
    since = {}  # stage -> (time, tokens) when it was learned
    for wait_s, calls, runs, declared_now in looks:
        now_s += wait_s
        figures = figures_of(
            calls, runs, min_samples=options.min_samples, half_life_s=options.half_life_s
        )
        before, held = held, learn(declared_now, held, figures, now_s, options)
        days = (now_s - before.since_s) / DAY_S
        growth = options.max_growth_per_day ** min(1.0, days) * (1 + 1e-9)
        for number in range(1, before.learned_stages + 1):
            assert total(held, number) <= growth * total(before, number)
            first_s, tokens = since[number]
            over_all = options.max_growth_per_day ** ((now_s - first_s) / DAY_S)
            assert total(held, number) <= over_all * tokens * (1 + 1e-9)
        if before.calls_learned:
            grown = growth * before.profile.calls_per_interaction
            assert held.profile.calls_per_interaction <= grown
        for number in range(1, held.learned_stages + 1):
            since.setdefault(number, (now_s, total(held, number)))
        assert held.learned_stages >= before.learned_stages
        assert held.calls_learned or not before.calls_learned


@given(DECLARED, OPTIONS, st.lists(LOOK, min_size=1, max_size=6))
def test_lower_usage_applies_immediately(declared, options, looks):
    """The profile falls from the first observed stage on, up to the smallest change that counts."""
    now_s, held = 0.0, as_declared(declared, 0.0, options)
    for wait_s, calls, runs, declared_now in looks:
        now_s += wait_s
        figures = figures_of(
            calls, runs, min_samples=options.min_samples, half_life_s=options.half_life_s
        )
        before, held = held, learn(declared_now, held, figures, now_s, options)
        for number, found in enumerate(figures.stages, start=1):
            used, was = found.expected.total_tokens, total(before, number)
            if number <= before.learned_stages and used < was:
                slack = 1 / (1 - options.min_change)
                assert total(held, number) <= used * slack * (1 + 1e-9)


@given(DECLARED, OPTIONS, histories(CALL, 30), histories(RUN, 12), DECLARED)
def test_a_declaration_after_learning_changes_nothing(declared, options, calls, runs, other):
    figures = figures_of(
        calls * 3, runs * 3, min_samples=options.min_samples, half_life_s=options.half_life_s
    )
    first = as_declared(declared, 0.0, options)
    held = learn(declared, first, figures, 0.0, options)
    if held.source == "learned" and held.learned_stages == len(held.profile.stages):
        one = AppProfile(other.stages[:1], other.calls_per_interaction)
        assert learn(one, held, figures, 0.0, options) is held


@given(DECLARED, OPTIONS)
def test_an_unobserved_declaration_weighs_no_more_than_its_trust(declared, options):
    profile = as_declared(declared, 0.0, options).profile
    for number in range(1, 6):
        tokens = profile.stage(number).total_tokens
        assert profile.believed(number, tokens) <= options.believed_tokens
    assert profile.calls_per_interaction <= options.believed_calls
