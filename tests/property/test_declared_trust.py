"""Trust in declared profiles: what a tenant gains is bounded, whatever and how often it declares."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions.call import NO_USAGE, Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.declared_trust import REGAINED, DeclaredTrust
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

TRUST = WscOptions().declared_trust
USED = TokenUsage(40, 0, 0, 24)


def app(input_tokens, output_tokens, **more):
    profile = AppProfile((StageProfile(input_tokens, 0, output_tokens),), **more)
    return profile, Limits()


class Tenant:
    """Calls of one tenant's apps over two models; a call waits for its worker and ends at once."""

    def __init__(self, apps, profile, **options):
        self.system = SYSTEMS["fairserve"].with_options(options)
        self.dispatcher = Dispatcher(self.system)
        self.calls = 0
        for name in apps:
            self.dispatcher.handle(ev.AppChanged(name, *profile), 0.0)
        for model in ("m", "n"):
            self.dispatcher.handle(ev.WorkerJoined(f"w-{model}", 100_000, model), 0.0)

    def call(self, app_name, usage=USED, model="m"):
        """Make a call; return what it was charged, in typical calls."""
        self.calls += 1
        name = f"c{self.calls}"
        call = Call(name, "t", app_name, "u", name, "x", 40, 0, 1000, single=True, pool=model)
        feeder = self.dispatcher.pool_of(model).feeder
        self.dispatcher.handle(ev.CallArrived(call), 0.0)
        record = feeder._charges._dispatched[name]
        self.dispatcher.handle(ev.CallEnded(name, "completed", usage), 0.0)
        return record.charged


@pytest.mark.parametrize("per_app", [1, 20, 10_000])
def test_a_stock_of_apps_gains_no_more_than_one(per_app):
    lie = app(1e7, 1e7, believed_tokens=4800.0)
    tenant = Tenant([f"a{number}" for number in range(1000)], lie)
    charged = [
        tenant.call(f"a{number // per_app}", model="mn"[number % 2]) for number in range(1000)
    ]
    assert TRUST - 1 <= 1000 - sum(charged) <= TRUST + REGAINED * 1000 + 1
    assert charged[0] == pytest.approx(64 / 4800)
    assert sum(charged[-100:]) > 95


def test_true_declarations_are_trusted_without_end():
    true = app(40, 24, believed_tokens=4800.0)
    tenant = Tenant([f"a{number}" for number in range(500)], true)
    rng = random.Random(1)
    charged = []
    for number in range(500):
        output = rng.choice([4, 44])
        charged.append(tenant.call(f"a{number}", USED._replace(output_tokens=output)) * 64)
        assert charged[-1] == pytest.approx(40 + output), "by its declared size"
    assert sum(charged) == pytest.approx(500 * 64, rel=0.05)


def test_calls_that_end_before_a_worker_serves_them_take_no_trust():
    tenant = Tenant(["a"], app(40, 960, believed_tokens=4800.0))
    for _ in range(int(TRUST) + 8):
        tenant.call("a", NO_USAGE)
    assert tenant.call("a", USED._replace(output_tokens=960)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        (app(1e4, 0), {}),  # learning is off
        (app(1e4, 0, believed_tokens=1e4, seen_stages=1), {}),  # calls have shown it
        (app(1e4, 0, believed_tokens=1e4), {"feeder.declared_trust": float("inf")}),
    ],
)
def test_trust_is_not_needed(profile, options):
    tenant = Tenant(["a"], profile, **options)
    assert [tenant.call("a") for _ in range(100)] == [pytest.approx(64 / 1e4)] * 100


@given(st.integers(0, 2**32), st.sampled_from([1.0, 8.0, 32.0]))
def test_a_tenant_gains_its_trust_and_a_part_of_its_service_at_most(seed, most):
    """Gain: what its calls would be charged by their own sizes, less what they were charged."""
    rng = random.Random(seed)
    trust = DeclaredTrust()
    live, gained, charged = {}, 0.0, 0.0
    for number in range(300):
        if live and rng.random() < 0.5:
            call_id = rng.choice(sorted(live))
            typical, prompt, was_taken = live.pop(call_id)
            if rng.random() < 0.1:
                trust.cancel(call_id)
                continue
            trust.end(call_id, prompt + 24, 24)
            if was_taken:
                gained += 1 - (prompt + 24) / typical
            charged += (prompt + 24) / typical
        else:
            prompt = rng.choice([10.0, 100.0, 1000.0])
            declared = rng.choice([1.0, 100.0, 4800.0])
            taken = trust._tenants["t"].taken if trust._tenants else 0.0
            typical = trust.begin_declared(
                str(number), "t", declared, prompt=prompt, per_output=1.0, most=most
            )
            assert typical <= declared
            live[str(number)] = typical, prompt, trust._tenants["t"].taken > taken
        assert trust._tenants["t"].taken <= most
        assert gained <= most + REGAINED * charged + 1e-9
        if number % 100 == 50:
            state = json.loads(json.dumps(trust.snapshot()))
            trust = DeclaredTrust()
            trust.restore(state)
            assert trust.snapshot() == state


def test_trust_is_taken_while_a_call_runs_and_returned_by_one_that_was_not_served():
    trust = DeclaredTrust()

    def begin(number):
        return trust.begin_declared(
            f"c{number}", "t", 4800.0, prompt=40.0, per_output=1.0, most=2.0
        )

    assert [begin(number) for number in range(3)] == [4800.0, 4800.0, 240.0]
    trust.cancel("c0")
    assert begin(3) == 4800.0
    trust.end("c1", 64.0, 24)
    assert begin(4) == pytest.approx(64.0), "the output of the tenant's calls is known now"
    trust.end("c3", 9600.0, 9560)
    assert begin(5) == 4800.0
