"""A preview of a limit: the core's quotas over the calls of the last hour."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.platform.tuning.quota_preview import QuotaReplay, ReplayedCall
from fairserve.scheduling.events import BudgetSpent, ContractChanged
from fairserve.throttling.quotas.contracts import WINDOW_S
from fairserve.throttling.quotas.quota import Quota

START = 10_000.0


def calls(*arrivals, run=None, **fields):
    """Return calls of 10 s each that arrive so many seconds after the start."""
    return [
        ReplayedCall(
            f"c{number}", "a", "u", run or f"r{number}", START + at, START + at + 10, 100, False
        )._replace(**fields)
        for number, at in enumerate(arrivals)
    ]


def rejected(found, limit, value, *, scope="app", since=START, **more):
    owner = {"app": "a" if scope.startswith("app") else "", "user": "u" if scope == "user" else ""}
    return QuotaReplay("t", scope, **owner, calls=found, **more).rejected(limit, value, since)


@pytest.mark.parametrize(
    ("limit", "value", "count"),
    [
        ("rpm_limit", 2, 2),
        ("rpm_limit", 4, 0),
        ("tpm_limit", 300, 1),
        ("tpm_limit", 99, 5),
        ("max_parallel_requests", 1, 3),
        ("max_parallel_requests", 4, 0),
    ],
)
@pytest.mark.parametrize("scope", ["tenant", "app", "app_user", "user"])
def test_a_limit_rejects_what_the_core_would(limit, value, count, scope):
    # Four calls within 4 s, and one two minutes later.
    assert rejected(calls(0, 1, 2, 3, 120), limit, value, scope=scope) == count


def test_calls_of_an_accepted_run_pass_rates_unless_every_call_counts():
    found = calls(0, 1, 2, run="one")
    assert rejected(found, "rpm_limit", 1) == 0
    assert rejected(found, "rpm_limit", 1, rates_cut_runs=True) == 2
    assert rejected(found, "max_parallel_requests", 1) == 2


def test_calls_before_the_hour_fill_its_windows_and_are_not_counted():
    assert rejected(calls(0, 1, 2, 3), "rpm_limit", 1, since=START + 2) == 2


def test_a_failed_call_counts_for_nothing_once_it_has_ended():
    assert rejected(calls(0, 11, refunded=True), "rpm_limit", 1) == 0
    assert rejected(calls(0, 9, refunded=True), "rpm_limit", 1) == 1


def test_a_users_own_limit_replaces_that_of_each_user():
    own = [ContractChanged("user", "t", "", "u", Quota(rpm_limit=100))]
    assert rejected(calls(0, 1), "rpm_limit", 1, scope="app_user", own=own) == 0
    other = [ContractChanged("user", "t", "", "v", Quota(rpm_limit=100))]
    assert rejected(calls(0, 1), "rpm_limit", 1, scope="app_user", own=other) == 1


@pytest.mark.parametrize("scope", ["tenant", "app", "app_user", "user"])
def test_a_budget_begins_with_what_its_period_has_spent(scope):
    # The period of an hour ends before the third call. A call costs 10, and the budget is 25.
    hour, found = 3 * 3600 - START, calls(0, 1, 2, cost=10)
    found += calls(hour, hour + 1, hour + 2, cost=10)
    spent = [BudgetSpent(("t", "a", "u"), 6, 2 * 3600, scope)]
    more = {"scope": scope, "budget_duration": "1h"}
    assert rejected(found, "max_budget", 25, **more) == 2
    assert rejected(found, "max_budget", 25, spent=spent, **more) == 3
    assert rejected(found, "max_budget", 25, spent=[replace(spent[0], amount=26)], **more) == 4
    assert rejected(found, "max_budget", 30, **more) == 0


@given(st.lists(st.integers(0, 600), max_size=40), st.integers(1, 10))
def test_what_is_admitted_never_exceeds_the_limit_in_a_minute(seconds, value):
    """An independent count: a call is rejected if the last minute has admitted as many as allowed."""
    admitted, expected = [], 0
    for at in sorted(seconds):
        # An amount counts for a minute from its second on, and that second.
        if sum(each >= at - WINDOW_S for each in admitted) < value:
            admitted.append(at)
        else:
            expected += 1
    assert rejected(calls(*sorted(seconds)), "rpm_limit", value) == expected
