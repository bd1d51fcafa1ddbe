"""Test quotas inside the dispatcher: rejections, exceptions, and refunds."""

import json

import pytest
from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.admission import AdmissionOptions
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import UNLIMITED, Quota

AT = 1_800_000_000.0
PRICE = TokenPrice(1_000_000, 500_000, 2_000_000, "price_1")
"""Prices in nano-units: 1,000 per input token, 500 per cached one, 2,000 per output token."""
DAY = {"budget_duration": "1d"}


class Gate:
    """A dispatcher with one large worker, and calls of 32 prompt and 8 output tokens."""

    def __init__(self, system="fairserve", **options):
        self.dispatcher = Dispatcher(SYSTEMS[system], admission=AdmissionOptions(**options))
        self.now_s = 10.0
        self.handle(ev.WorkerJoined("w0", 100_000))

    def handle(self, event):
        return self.dispatcher.handle(event, self.now_s)

    def contract(self, scope, quota=UNLIMITED, *, app="", user="", models=None):
        self.handle(ev.ContractChanged(scope, "t", app, user, quota, models))

    def arrive(self, call_id, **more):
        """Return the reason of the rejection, or "" for an accepted call."""
        call = make_call(call_id, **more)
        commands = self.handle(ev.CallArrived(call, AT + self.now_s, PRICE))
        rejected = [each for each in commands if isinstance(each, ev.Refuse)]
        return rejected[0].decision.reason if rejected else ""

    def end(self, call_id, outcome="completed", usage=TokenUsage(32, 0, 0, 8), **more):
        self.handle(ev.CallEnded(call_id, outcome, usage, **more))

    def use(self, app="app", user="u"):
        return self.dispatcher.limits_in_use(("t", app, user), self.now_s, AT + self.now_s).contract


@pytest.fixture
def gate():
    return Gate()


def test_each_scope_rejects_by_its_own_limit(gate):
    gate.contract("tenant", Quota(rpm_limit=6))
    gate.contract("app", Quota(rpm_limit=4), app="app")
    gate.contract("app_user", Quota(rpm_limit=2), app="app")
    reasons = [gate.arrive(f"a{n}", user="ann") for n in range(3)]
    assert reasons == ["", "", "contract_rpm"]
    assert [gate.arrive(f"b{n}", user="bob") for n in range(2)] == ["", ""]
    assert gate.arrive("c", user="cid") == "contract_rpm", "the app has had four"
    assert [gate.arrive(f"d{n}", app="other") for n in range(3)] == ["", "", "contract_rpm"]


def test_the_use_of_one_quota_is_that_of_its_holder(gate):
    gate.contract("tenant", Quota(rpm_limit=5, max_parallel_requests=2))
    gate.contract("app", Quota(rpm_limit=4, tpm_limit=1000), app="app")
    gate.arrive("a")
    gate.arrive("b", app="other")
    gate.end("b")

    def use(scope, owner):
        found = gate.dispatcher.quota_in_use((scope, owner, ""), gate.now_s, AT + gate.now_s)
        limits = (found.requests, found.tokens, found.parallel)
        return [None if each is None else (each.used, each.limit) for each in limits]

    assert use("tenant", "t") == [(2, 5), None, (1, 2)]
    assert use("app", "app") == [(1, 4), (40, 1000), None]
    assert use("app", "unknown") == [None, None, None]


def test_a_user_limit_replaces_the_app_limit_across_all_apps(gate):
    gate.contract("app_user", Quota(rpm_limit=1, max_parallel_requests=3), app="app")
    gate.contract("user", Quota(rpm_limit=3), user="vip")
    reasons = [gate.arrive(f"a{n}", user="vip") for n in range(2)]
    assert reasons == ["", ""]
    assert gate.arrive("b", user="vip", app="other") == ""
    assert gate.arrive("c", user="vip", app="other") == "contract_rpm"
    assert gate.arrive("d", user="u") == ""
    assert gate.arrive("e", user="u") == "contract_rpm"


def test_only_models_allowed_by_every_quota_are_accepted(gate):
    gate.contract("tenant", models=("m", "n"))
    assert gate.arrive("a") == ""
    gate.contract("app", app="app", models=("n",))
    assert gate.arrive("b") == "model_not_allowed"
    assert gate.arrive("c", app="other") == ""
    gate.contract("app", app="app")
    gate.contract("app_user", app="app", models=("n",))
    gate.contract("user", Quota(rpm_limit=9), user="u")
    assert gate.arrive("d") == "model_not_allowed"
    gate.contract("user", user="u", models=("m",))
    assert gate.arrive("e") == "", "a user's own list replaces that of its app"


def test_calls_rejected_by_a_quota_do_not_count_for_the_throttle(gate):
    profile = AppProfile((StageProfile(32, 0, 8),))
    gate.handle(ev.AppChanged("app", profile, Limits(user_rpm=100)))
    gate.contract("app_user", Quota(rpm_limit=1), app="app")
    assert [gate.arrive(f"c{n}") for n in range(3)] == ["", "contract_rpm", "contract_rpm"]
    throttle = gate.dispatcher.limits_in_use(("t", "app", "u"), 10.0, AT).throttle
    assert throttle.used == 1


def test_throttled_calls_reserve_nothing():
    gate = Gate("rpm-1")
    gate.contract("app_user", Quota(rpm_limit=5, max_budget=10**9, **DAY), app="app")
    assert [gate.arrive(f"c{n}") for n in range(3)] == ["", "rpm_user_limit", "rpm_user_limit"]
    assert gate.use().requests.used == 1
    assert gate.use().budget.held == 32_000 + 16_000


def test_an_active_run_passes_rate_limits_unless_they_cut_runs():
    for cuts, expected in ((False, ""), (True, "contract_rpm")):
        gate = Gate(rates_cut_runs=cuts)
        gate.contract("app_user", Quota(rpm_limit=1), app="app")
        assert gate.arrive("first", run="R") == ""
        assert gate.arrive("second", run="R") == expected
        assert gate.arrive("other") == "contract_rpm"


def test_parallel_calls_are_bounded_within_a_run(gate):
    gate.contract("app", Quota(max_parallel_requests=2), app="app")
    reasons = [gate.arrive(f"c{n}", run="R") for n in range(3)]
    assert reasons == ["", "", "contract_parallel"]
    gate.end("c0")
    assert gate.arrive("c3", run="R") == ""
    gate.handle(ev.CancelRequested("c1"))
    gate.end("c1", "cancelled")
    assert gate.arrive("c4", run="R") == ""


@pytest.mark.parametrize(
    ("outcome", "charged", "spent", "requests"),
    [
        ("completed", True, 12_000 + 10_000 + 8_000, 1),
        ("cancelled", True, 12_000 + 10_000 + 8_000, 1),
        ("cancelled", False, 0, 0),
        ("failed", True, 0, 0),
        ("expired", True, 0, 0),
    ],
)
def test_usage_is_settled_and_failed_calls_are_released(gate, outcome, charged, spent, requests):
    gate.contract("app", Quota(rpm_limit=9, tpm_limit=900, max_budget=10**6, **DAY), app="app")
    gate.arrive("c")
    assert gate.use().budget.held == 32_000 + 16_000
    assert gate.use().tokens.used == 40
    gate.end("c", outcome, TokenUsage(32, 0, 20, 4), charged=charged)
    use = gate.use()
    assert (use.budget.spent, use.budget.held) == (spent, 0)
    assert use.requests.used == requests
    assert use.tokens.used == (36 if spent else 0)


def test_a_later_budget_includes_running_calls_and_reported_spending(gate):
    gate.arrive("c")
    gate.contract("app", Quota(max_budget=10**6, **DAY), app="app")
    gate.end("c")
    assert gate.use().budget.spent == 48_000
    gate.handle(ev.BudgetSpent(("t", "app", ""), 2_000, AT + 10, scope="app"))
    assert gate.use().budget.spent == 50_000
    gate.handle(ev.BudgetSpent(("t", "app", ""), 9_000, AT - 2 * 86_400, scope="app"))
    assert gate.use().budget.spent == 50_000, "that was of another day"
    gate.contract("app", Quota(max_budget=2 * 10**6, **DAY), app="app")
    assert gate.use().budget.spent == 50_000, "the same days go on"
    gate.contract("app", Quota(max_budget=2 * 10**6, budget_duration="1mo"), app="app")
    assert gate.use().budget.spent == 0, "the ledger reports the spending of the month again"
    gate.handle(ev.BudgetSpent(("t", "app", ""), 7, AT + 10))
    gate.contract("app", app="app")
    gate.contract("app", Quota(max_budget=10**6, budget_duration="1mo"), app="app")
    assert gate.use().budget.spent == 0, "and after a time without a budget"


def test_reported_spending_counts_for_its_scope(gate):
    for scope, app in (("tenant", ""), ("app", "app"), ("app_user", "app")):
        gate.contract(scope, Quota(max_budget=10**6, **DAY), app=app)
    gate.handle(ev.BudgetSpent(("t", "app", "u"), 5, AT + 10, scope="app_user"))
    budgets = gate.dispatcher.directory.quotas("t", "app", "u")
    spent = {
        holder[0]: gate.dispatcher.admission._contracts.use([(holder, quota)], 10.0, AT + 10)
        for holder, quota in budgets
    }
    assert {scope: use.budget.spent for scope, use in spent.items()} == {
        "tenant": 0,
        "app": 0,
        "app_user": 5,
    }
    gate.handle(ev.BudgetSpent(("t", "app", "u"), -5, AT + 10))
    assert gate.use(user="u").budget.spent == 0


def test_disabled_limits_count_and_reject_nothing():
    gate = Gate(contracts=False)
    gate.contract("app_user", Quota(rpm_limit=1, max_budget=1, **DAY), app="app")
    assert [gate.arrive(f"c{n}") for n in range(3)] == ["", "", ""]
    assert gate.use().requests is None, "headers show no limit that does not bind"


def test_a_call_larger_than_its_rate_is_rejected_immediately(gate):
    gate.contract("app", Quota(tpm_limit=39), app="app")
    assert gate.arrive("c") == "contract_call_too_large"
    gate.contract("app", Quota(tpm_limit=40), app="app")
    assert gate.arrive("d") == ""


def test_weights_of_tenant_app_and_user_multiply():
    directory = Directory()
    profile = AppProfile((StageProfile(32, 0, 8),))
    directory.take(ev.AppChanged("app", profile, Limits(), weight=0.5))
    directory.take(ev.TenantChanged("t", weight=4.0))
    directory.take(ev.UserChanged("t", "u", weight=3.0))
    assert directory.weight("t", "app", "u") == 6.0
    assert directory.weight("t", "other", "someone") == 4.0
    with pytest.raises(ValueError, match="weight is 0; allowed: over 0"):
        directory.take(ev.TenantChanged("t", weight=0))


def test_quotas_survive_a_snapshot():
    gate = Gate()
    gate.handle(ev.TenantChanged("t", weight=2.0))
    gate.contract("tenant", Quota(rpm_limit=3, max_budget=10**6, **DAY), models=("m",))
    gate.arrive("a")
    gate.arrive("b")
    gate.end("a")
    state = json.loads(json.dumps(gate.dispatcher.snapshot(gate.now_s)))
    other = Gate()
    other.dispatcher = Dispatcher(SYSTEMS["fairserve"])
    other.dispatcher.restore(state, other.now_s)
    assert other.use() == gate.use()
    for each in (gate, other):
        each.end("b")
        assert each.use().budget.spent == 96_000
        assert each.arrive("c") == ""
        assert each.arrive("d") == "contract_rpm"
    assert other.dispatcher.directory.weight("t", "app", "u") == 2.0
