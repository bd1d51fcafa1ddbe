"""The error of a rejected call has the kind of limit, its scope, and the effect of waiting."""

import pytest

from fairserve.platform.control.messages import RejectCall
from fairserve.platform.serving.decision.headers import limit_headers
from fairserve.platform.serving.decision.rejection import rejection_error
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.throttling.base import Decision, LimitUse
from fairserve.throttling.quotas.contracts import BudgetUse, ContractUse


def answer(**fields):
    decision = Decision(admitted=False, **fields)
    return rejection_error(RejectCall("c", decision, mid_run=False))


def test_retry_is_certain_for_a_users_own_rate_only():
    rate = {"limit": 5, "count": 6, "window_s": 60.0, "retry_after_s": 3.2}
    own = answer(reason="contract_rpm", scope="user", certain=True, **rate)
    assert (own.status, own.code, own.type) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert own.headers == {
        "Retry-After": "4",
        "x-fairserve-refusal": "contract_rpm",
        "x-fairserve-retry": "certain",
    }
    assert own.body()["error"]["fairserve"] == {
        "kind": "contract",
        "reason": "contract_rpm",
        "scope": "user",
        "limit": 5,
        "count": 6,
        "window_s": 60.0,
        "retry_after_s": 4,
        "retry": "certain",
    }
    assert "6 calls of this user in 60 s; the limit is 5" in own.message
    shared = answer(reason="contract_tpm", scope="app", **rate)
    assert shared.headers["x-fairserve-retry"] == "best_effort"
    assert "6 tokens of this app in 60 s" in shared.message


def test_throttle_and_quota_rejections_differ():
    error = answer(
        reason="overloaded_app_limit",
        scope="app",
        limit=9,
        count=10,
        window_s=60.0,
        retry_after_s=1,
    )
    assert (error.status, error.code) == (429, "overloaded")
    assert error.body()["error"]["fairserve"]["kind"] == "throttle"
    assert "while the workers are overloaded" in error.message


@pytest.mark.parametrize("reason", ["contract_budget", "contract_soft_budget"])
def test_a_spent_budget_is_not_retried(reason):
    error = answer(reason=reason, scope="tenant", retry_after_s=7200.4)
    assert (error.status, error.code, error.type) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert error.headers["x-should-retry"] == "false"
    assert error.headers["Retry-After"] == "7201"
    assert error.headers["x-fairserve-retry"] == "no"
    assert "budget of this tenant" in error.message


@pytest.mark.parametrize(
    ("reason", "status", "code", "param"),
    [
        ("user_blocked", 403, "user_blocked", None),
        ("model_not_allowed", 403, "model_not_allowed", "model"),
        ("contract_call_too_large", 400, "tokens_over_limit", "max_tokens"),
        ("contract_parallel", 429, "rate_limit_exceeded", None),
        ("contract_budget_held", 429, "rate_limit_exceeded", None),
        ("contract_too_many_users", 429, "rate_limit_exceeded", None),
    ],
)
def test_other_reasons_have_their_status_and_code(reason, status, code, param):
    error = answer(reason=reason, scope="user", limit=3, count=4)
    assert (error.status, error.code, error.param) == (status, code, param)
    assert ("Retry-After" in error.headers) == (status == 429)


def test_headers_prefer_the_quota_over_the_throttle():
    throttle = LimitUse(20, 5, 10.0)
    assert limit_headers(LimitsInUse(throttle=throttle)) == {
        "x-ratelimit-limit-requests": "20",
        "x-ratelimit-remaining-requests": "15",
        "x-ratelimit-reset-requests": "10s",
        "x-fairserve-limit-requests": "throttle; scope=user",
    }
    contract = ContractUse(
        LimitUse(7, 7, 1.5, "app"),
        LimitUse(1000, 400, 59.25, "tenant"),
        BudgetUse(25 * 10**8, 10**9, 5 * 10**8, 60.0, soft=True, scope="user"),
    )
    assert limit_headers(LimitsInUse(contract, throttle)) == {
        "x-ratelimit-limit-requests": "7",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1.5s",
        "x-fairserve-limit-requests": "contract; scope=app",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "600",
        "x-ratelimit-reset-tokens": "59.25s",
        "x-fairserve-limit-tokens": "contract; scope=tenant",
        "x-fairserve-budget-limit": "2.5",
        "x-fairserve-budget-remaining": "1",
        "x-fairserve-budget-reset": "60s",
        "x-fairserve-budget-scope": "user",
        "x-fairserve-budget-soft-end": "passed",
    }
    assert limit_headers(LimitsInUse()) == {}
