"""A run is immune up to a length that its app's runs have shown, or else that is declared."""

import pytest

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.tracking.immunity import ImmunityRule

CONTEXT = 8_000


def app(tokens=100.0, calls=5.0, **more):
    return AppProfile((StageProfile(tokens, 0, 0),), calls, **more)


def first_mortal(rule, profile, tokens_of_call=0):
    """Return the first call of a run, after its first one, that is no longer immune."""
    calls = range(1, 1_000_000)
    return next(n for n in calls if not rule.holds(n, n * tokens_of_call, profile, CONTEXT))


def test_the_first_call_of_a_run_is_not_immune():
    assert not ImmunityRule().holds(0, 0, app(), CONTEXT)


@pytest.mark.parametrize(
    ("profile", "calls", "tokens"),
    [
        (app(), 10, 1_000),
        (app(calls=10_000), 200, 20_000),
        (app(tokens=1e7), 10, 10 * CONTEXT),
        (app(tokens=1e7, calls=1e4), 200, 200 * CONTEXT),
        (app(calls=1e4, p99_calls=7.0, p99_tokens=900.0), 14, 1_800),
        (app(calls=1, p99_calls=40.0, p99_tokens=9e5), 80, 1_800_000),
    ],
)
def test_immunity_ends_at_twice_the_longest_usual_run(profile, calls, tokens):
    rule = ImmunityRule()
    assert first_mortal(rule, profile) == calls
    assert rule.holds(1, tokens, profile, CONTEXT)
    assert not rule.holds(1, tokens + 1, profile, CONTEXT)


def test_the_older_rule_trusts_the_declaration():
    rule = ImmunityRule(4.0, "profile")
    assert first_mortal(rule, app(calls=1e4, p99_calls=7.0, p99_tokens=900.0)) == 40_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0.0,), "immunity_factor is 0.0; allowed: over 0"),
        ((2.0, "p50"), "immunity_rule is 'p50'; allowed: p99, profile"),
    ],
)
def test_invalid_options_name_the_allowed_range(options, message):
    with pytest.raises(ValueError, match=message):
        ImmunityRule(*options)
