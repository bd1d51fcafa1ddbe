"""Every rejection reason has an explanation, and every explanation its reason."""

import ast
import re
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import fairserve
from fairserve.platform.tuning.explanation import REASONS, explain
from fairserve.platform.tuning.schemas import EventOut
from fairserve.scheduling.rejection_context import RejectionContext

ROOT = Path(fairserve.__file__).parents[2]
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = dict.fromkeys(EventOut.model_fields)
BARE = NOTHING | {
    "call_id": "c",
    "at": AT,
    "tenant": "tn_a",
    "app": "app_a",
    "user": "ann",
    "interaction_id": "run",
    "mid_run": False,
}
"""Minimal fields of an event, without load and run."""
LOAD = {
    "system": "fairserve",
    "overloaded": True,
    "demand_tokens": 1180,
    "capacity_tokens": 1000,
    "high_watermark": 1.1,
    "low_watermark": 0.9,
    "queued_calls": 1,
    "call_tokens": 40,
}
FIRST = {
    "run_calls": 0,
    "run_tokens": 0,
    "expected_calls": 2.5,
    "expected_tokens": 1250.0,
    "immunity_factor": 4.0,
    "under_way": False,
    "immune": False,
}
LATE = FIRST | {"run_calls": 10, "run_tokens": 6000, "under_way": True}
MONEY = {
    "budget_limit": Decimal("1000"),
    "budget_spent": Decimal("999.5"),
    "budget_held": Decimal("0.000000001"),
    "call_cost": Decimal("1.25"),
}
USER = {"scope": "user"}
RATE = USER | {"limit": 20, "count": 21, "window_s": 60.0, "retry_after_s": 11.2}
NEW_RUN = "Its run was not in progress: the call would have been its first."
AGAIN = "The client may retry after 12 s."
SOON = "The client may retry after 1 s."
NO_TIME = "A retry does not help, so the response had no Retry-After."
ANY_LOAD = (
    "Its model was overloaded: the demand was 118 % of its KV capacity (1,180 of 1,000 tokens, 1 call in"
    " its queue); this limit applies at any load."
)
OVERLOAD = (
    "Its model was overloaded: the demand was 118 % of its KV capacity (1,180 of 1,000 tokens, 1 call in"
    " its queue); an overload begins at 110 % and ends at 90 %, and until then new runs of"
    " clients over a limit are rejected."
)
PERIOD = "The next period begins at 2026-03-02 00:00 UTC, the time of Retry-After in the response."
BUDGET = (
    "The budget of this app is 1,000.00 EUR: 999.50 EUR was spent, 0.000000001 EUR was reserved for"
    " running calls, and this call could cost up to 1.25 EUR."
)

CASES = {
    "user_blocked": (USER, ["An operator has blocked this user.", NEW_RUN, NO_TIME]),
    "model_not_allowed": (
        {"model": "large {limit}"},
        [
            "Its quota does not allow the model large {limit}.",
            NEW_RUN,
            NO_TIME,
        ],
    ),
    "rpm_user_limit": (
        RATE,
        [
            "The limit of 20 calls within 60 s for this user was reached: the call would have been"
            " accepted call number 21.",
            ANY_LOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "rpm_app_limit": (
        RATE | {"scope": "app"},
        [
            "The limit of 20 calls within 60 s for the app as a whole was reached: the call would have"
            " been accepted call number 21.",
            ANY_LOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "overloaded_user_limit": (
        RATE,
        [
            "The limit of 20 calls within 60 s for this user was reached: the call was number 21,"
            " including rejected calls.",
            OVERLOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "overloaded_app_limit": (
        RATE | {"scope": "app"},
        [
            "The limit of 20 calls within 60 s for the app as a whole was reached: the call was number"
            " 21, including rejected calls.",
            OVERLOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "overloaded_new_users_limit": (
        RATE | {"scope": "app"},
        [
            "The limit of the app is runs of 20 new users within 60 s: this user, without calls for a"
            " day, would have been number 21.",
            OVERLOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "contract_rpm": (
        RATE,
        [
            "The quota of this user is 20 calls within 60 s: the call would have been number 21.",
            ANY_LOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "contract_tpm": (
        RATE | {"scope": "tenant", "limit": 1000, "count": 1030},
        [
            "The quota of this tenant is 1,000 tokens within 60 s: with the prompt and the maximum"
            " output of this call, usage would have been 1,030.",
            ANY_LOAD,
            NEW_RUN,
            AGAIN,
        ],
    ),
    "contract_call_too_large": (
        USER | {"limit": 30, "count": 40},
        [
            "The quota of this user is 30 tokens per minute, and the prompt and the maximum output of"
            " this call alone have 40.",
            NEW_RUN,
            NO_TIME,
        ],
    ),
    "contract_parallel": (
        USER | {"limit": 2, "count": 3, "retry_after_s": 1.0},
        [
            "The quota of this user is 2 parallel calls: the call would have been number 3.",
            ANY_LOAD,
            NEW_RUN,
            SOON,
        ],
    ),
    "contract_budget": (
        MONEY | {"scope": "app", "retry_after_s": 43_200.0},
        [BUDGET, NEW_RUN, PERIOD],
    ),
    "contract_budget_held": (
        MONEY | {"scope": "app", "retry_after_s": 1.0},
        [
            f"{BUDGET} It may fit once the running calls have cost less than their maximum.",
            NEW_RUN,
            SOON,
        ],
    ),
    "contract_soft_budget": (
        MONEY | {"scope": "app", "retry_after_s": 43_199.9},
        [
            "The soft budget of this app is 1,000.00 EUR: 999.50 EUR was spent, and beyond"
            " it new runs are rejected.",
            NEW_RUN,
            PERIOD,
        ],
    ),
    "contract_too_many_users": (
        USER | {"retry_after_s": 3600.0},
        [
            "The server's limit of 1,000,000 budgets in use was reached before this user's.",
            NEW_RUN,
            "The client may retry after 3,600 s.",
        ],
    ),
    "queue_share_full": (
        {"limit": 625, "count": 625, "scope": "user", "retry_after_s": 5.0},
        [
            "625 calls of this user were queued for its model; the limit is 625.",
            "Its model was overloaded: the demand was 118 % of its KV capacity (1,180 of 1,000 tokens,"
            " 1 call in its queue).",
            NEW_RUN,
            "The client may retry after 5 s.",
        ],
    ),
    "queue_full": (
        {"limit": 10_000, "count": 10_000, "retry_after_s": 5.0},
        [
            "10,000 calls were queued for its model; the limit is 10,000.",
            "Its model was overloaded: the demand was 118 % of its KV capacity (1,180 of 1,000 tokens,"
            " 1 call in its queue).",
            NEW_RUN,
            "The client may retry after 5 s.",
        ],
    ),
    "draining": (
        {"retry_after_s": 5.0},
        [
            "The server was draining and accepted no new calls.",
            NEW_RUN,
            "The client may retry after 5 s.",
        ],
    ),
}


def event(reason, *more):
    values = BARE | {"reason": reason}
    for each in more:
        values |= each
    return EventOut(**values)


def _strings(node):
    """Return the possible texts of an expression, with ``{scope}`` for each scope that rejects."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.JoinedStr):
        parts = "".join(
            part.value if isinstance(part, ast.Constant) else "{scope}" for part in node.values
        )
        return {parts.replace("{scope}", scope) for scope in ("user", "app")}
    return set()


def _decided():
    """Return the reasons in the code: those of decisions and those in variables of that name."""
    found = set()
    for folder in ("throttling", "scheduling", "platform/control"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Decision":
                    by_name = {each.arg: each.value for each in node.keywords}
                    reason = node.args[1] if len(node.args) > 1 else by_name.get("reason")
                    found |= _strings(reason)
                elif isinstance(node, ast.Constant) and re.fullmatch(
                    r"contract_\w+", str(node.value)
                ):
                    found.add(node.value)
    return found


def test_every_reason_in_the_code_is_explained():
    """Compare with the reasons in the code: a new one fails until it has a text and a case."""
    found = _decided() - {"contract_changed"}
    assert found == REASONS.keys() == CASES.keys()


@pytest.mark.parametrize("reason", CASES)
def test_each_reason_has_its_sentences(reason):
    values, expected = CASES[reason]
    assert explain(event(reason, LOAD, FIRST, values), "EUR") == expected
    assert 2 <= len(expected) <= 5


@pytest.mark.parametrize("reason", CASES)
def test_an_incomplete_event_is_explained_without_its_missing_fields(reason):
    values, expected = CASES[reason]
    old = {name: value for name, value in values.items() if name not in {*MONEY, "model"}}
    found = explain(event(reason, old))
    limit, *others = found
    assert limit == expected[0] or values.keys() & {*MONEY, "model"}
    assert {*others} <= {*expected, "Its model was overloaded."}
    assert "Its run was in progress." in explain(event(reason, old, {"mid_run": True}))
    for sentences in (found, explain(event(reason))):
        assert sentences
        assert not re.search(r"None|[{}]", " ".join(sentences))


@pytest.mark.parametrize(
    "reason", ["overloaded_user_limit", "contract_rpm", "contract_soft_budget"]
)
def test_explanation_states_when_immunity_ended(reason):
    assert (
        "Its run was in progress with 10 calls and 6,000 tokens and was no longer immune: immunity ends"
        " at 4 times the app's longest usual run, which is 2.5 calls or 1,250 tokens."
    ) in explain(event(reason, LOAD, LATE, CASES[reason][0]))


def test_explanation_of_a_run_that_lost_its_place():
    """It was far from the end of its immunity."""
    state = LATE | {"run_calls": 3, "run_tokens": 100}
    found = explain(event("overloaded_user_limit", LOAD, state, USER))
    assert (
        "Its run was in progress with 3 calls and 100 tokens and was no longer immune: it had been idle"
        " for longer than the runs of its app usually are, and had lost its place."
    ) in found


@pytest.mark.parametrize(
    "reason", ["rpm_user_limit", "contract_parallel", "draining", "contract_rpm"]
)
def test_explanation_of_a_cut_run_states_its_usage(reason):
    run = LATE | {"run_calls": 1, "immune": None if reason == "draining" else True}
    found = explain(event(reason, LOAD, run, CASES[reason][0]))
    assert (
        "Its run was in progress with 1 call and 6,000 tokens, which does not matter for this limit."
        in found
    )


def test_load_is_stated_without_workers_and_without_overload():
    rate = CASES["overloaded_app_limit"][0]
    none = explain(event("overloaded_app_limit", LOAD, {"capacity_tokens": 0}, rate))
    assert none[1].startswith(
        "Its model was overloaded: no worker accepted calls (the demand was 1,180 tokens, 1 call in its"
    )
    idle = LOAD | {"overloaded": False, "demand_tokens": 0, "queued_calls": 0}
    assert explain(event("rpm_user_limit", idle, RATE))[1] == (
        "Its model was not overloaded: the demand was 0 % of its KV capacity (0 of 1,000 tokens, 0 calls"
        " in its queue); this limit applies at any load."
    )


def test_an_unknown_reason_is_named():
    assert explain(event("moon_full", RATE))[0] == "The call was rejected: moon_full."


def test_an_event_has_all_fields_of_its_context():
    names = {field.name for field in fields(RejectionContext)}
    assert names <= EventOut.model_fields.keys()
    assert names == {*LOAD, *FIRST}
