"""A rejection has its context beside its limit: the load, the state of the run, and the budget."""

import json
from dataclasses import asdict

import pytest
from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.admission import AdmissionOptions
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Budget, Limits
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import Quota

PROFILE = AppProfile(stages=(StageProfile(20, 0, 5),), calls_per_interaction=2)
"""Profile of two calls and 50 tokens; runs are immune below 4 calls and up to 100 tokens."""
AT = 1_800_000_000.0
PRICE = TokenPrice(1_000_000, 500_000, 2_000_000, "price_1")


class Gate:
    """A dispatcher with one worker, and calls of 32 prompt and 8 output tokens."""

    def __init__(self, system="fairserve", *, capacity=100, limits=Limits(), **options):
        self.dispatcher = Dispatcher(
            SYSTEMS[system].with_options({"feed_window": 0.03}),
            admission=AdmissionOptions(**options),
        )
        self.now_s = 10.0
        if capacity:
            self.handle(ev.WorkerJoined("w0", capacity))
        self.handle(ev.AppChanged("app", PROFILE, limits))

    def handle(self, event):
        return self.dispatcher.handle(event, self.now_s)

    def arrive(self, call_id, **more):
        """Return the rejection, or None for an accepted call."""
        commands = self.handle(ev.CallArrived(make_call(call_id, **more), AT + self.now_s, PRICE))
        return next((each for each in commands if isinstance(each, ev.Refuse)), None)

    def end(self, call_id, usage=TokenUsage(32, 0, 0, 8), outcome="completed"):
        return self.handle(ev.CallEnded(call_id, outcome, usage))

    def contract(self, scope="app", quota=Quota(), **more):
        self.handle(
            ev.ContractChanged(scope, "t", "app" if "app" in scope else "", quota=quota, **more)
        )


def test_a_rejection_under_overload_has_the_load_and_no_active_run():
    gate = Gate(limits=Limits(user_rpm=2))
    calls = 0
    while (rejection := gate.arrive(f"c{calls}", user="ann" if calls else "u")) is None:
        calls += 1
    assert rejection.decision.reason == "overloaded_user_limit"
    context = rejection.context
    assert (context.system, context.overloaded) == ("fairserve", True)
    assert (context.high_watermark, context.low_watermark) == (2.0, 1.2)
    assert (context.demand_tokens, context.capacity_tokens) == gate.dispatcher.load()
    # Each call has 32 prompt tokens and 5 expected output tokens.
    assert (context.demand_tokens, context.capacity_tokens) == (calls * 37, 100)
    assert context.queued_calls == calls - 1 == gate.dispatcher.queued(""), "one is at the worker"
    assert context.call_tokens == 40
    assert (context.run_calls, context.run_tokens, context.under_way, context.immune) == (
        0,
        0,
        False,
        False,
    )
    assert (context.expected_calls, context.expected_tokens, context.immunity_factor) == (
        2,
        50,
        2.0,
    )
    assert rejection.decision.budget is None
    json.dumps(asdict(rejection))


def test_a_run_without_immunity_has_its_figures():
    gate = Gate(capacity=10_000, limits=Limits(user_rpm=1))
    for number in range(3):
        assert gate.arrive(f"r{number}", run="R") is None
        gate.end(f"r{number}")
    gate.handle(ev.WorkerReported("w0", 30_000))
    rejection = gate.arrive("r3", run="R")
    assert (rejection.decision.reason, rejection.mid_run) == ("overloaded_user_limit", True)
    context = rejection.context
    assert (context.run_calls, context.run_tokens) == (3, 120), "120 are over 2 times 50"
    assert (context.under_way, context.immune) == (True, False)
    assert (context.demand_tokens, context.capacity_tokens) == (30_000, 10_000)


def test_a_plain_rate_limit_reports_that_it_cut_an_immune_run():
    gate = Gate("rpm-2", capacity=10_000)
    assert gate.arrive("a", run="R") is None
    gate.end("a", TokenUsage(30, 0, 0, 1))
    assert gate.arrive("b", run="R") is None  # still running: its tokens are not known
    rejection = gate.arrive("c", run="R")
    assert (rejection.decision.reason, rejection.mid_run) == ("rpm_user_limit", True)
    context = rejection.context
    assert (context.system, context.overloaded) == ("rpm-2", False)
    assert (context.run_calls, context.run_tokens, context.under_way, context.immune) == (
        2,
        31,
        True,
        True,
    )


def test_the_load_is_that_of_the_requested_model():
    gate = Gate("rpm-1", capacity=0)
    gate.handle(ev.WorkerJoined("a", 100, "small"))
    gate.handle(ev.WorkerJoined("b", 7000, "large"))
    assert gate.arrive("a", pool="small") is None
    rejection = gate.arrive("b", pool="large")
    assert (rejection.context.demand_tokens, rejection.context.capacity_tokens) == (0, 7000)
    rejection = gate.arrive("c", pool="small")
    assert (rejection.context.demand_tokens, rejection.context.capacity_tokens) == (37, 100)


def test_a_run_that_could_be_reopened_counts_as_active():
    gate = Gate("rpm-1", capacity=10_000)
    assert gate.arrive("a", run="R") is None
    gate.end("a")
    gate.now_s += PROFILE.idle_timeout_s + 1
    gate.handle(ev.Tick())
    assert gate.dispatcher.tracker.get("R") is None
    gate.now_s -= 0  # the run ended by idling; the minute has passed, so use up the limit again
    assert gate.arrive("other") is None
    rejection = gate.arrive("b", run="R")
    context = rejection.context
    assert (context.run_calls, context.run_tokens, context.under_way) == (1, 40, True)


def test_blocked_users_and_forbidden_models_have_the_context():
    gate = Gate()
    gate.handle(ev.UserChanged("t", "eve", blocked=True))
    gate.contract("tenant", models=("other",))
    blocked = gate.arrive("a", user="eve")
    assert blocked.decision.reason == "user_blocked"
    not_allowed = gate.arrive("b")
    assert not_allowed.decision.reason == "model_not_allowed"
    for rejection in (blocked, not_allowed):
        assert (rejection.context.demand_tokens, rejection.context.capacity_tokens) == (
            0,
            100,
        )


@pytest.mark.parametrize(
    ("quota", "reason", "limit", "count"),
    [
        (Quota(rpm_limit=1), "contract_rpm", 1, 2),
        (Quota(tpm_limit=60), "contract_tpm", 60, 80),
        (Quota(tpm_limit=30), "contract_call_too_large", 30, 40),
        (Quota(max_parallel_requests=1), "contract_parallel", 1, 2),
    ],
)
def test_contract_rates_have_the_requested_tokens(quota, reason, limit, count):
    gate = Gate(capacity=10_000)
    gate.contract(quota=quota)
    if reason != "contract_call_too_large":
        assert gate.arrive("a") is None
    rejection = gate.arrive("b")
    decision = rejection.decision
    assert (decision.reason, decision.limit, decision.count) == (reason, limit, count)
    assert decision.budget is None
    assert (rejection.context.call_tokens, rejection.context.overloaded) == (40, False)


def test_budget_rejections_have_the_budget():
    most = PRICE.most(32, 8)
    gate = Gate(capacity=10_000)
    gate.contract(quota=Quota(max_budget=most + 5, budget_duration="1d"))
    assert gate.arrive("a") is None
    held = gate.arrive("b").decision
    assert (held.reason, held.budget) == ("contract_budget_held", Budget(most + 5, 0, most, most))
    gate.end("a")
    spent = PRICE.cost(TokenUsage(32, 0, 0, 8))
    over = gate.arrive("c").decision
    assert (over.reason, over.budget) == ("contract_budget", Budget(most + 5, spent, 0, most))

    soft = Quota(soft_budget=spent, budget_duration="1d", soft_end="finish_runs")
    gate.contract(quota=soft)
    ended = gate.arrive("d").decision
    assert (ended.reason, ended.budget) == ("contract_soft_budget", Budget(spent, spent, 0, most))


def test_accepted_calls_collect_no_context(monkeypatch):
    gate = Gate(capacity=10_000)
    pool = gate.dispatcher.pool_of("")
    monkeypatch.setattr(type(pool), "rejection_context", lambda *_: pytest.fail("collected"))
    assert gate.arrive("a") is None
