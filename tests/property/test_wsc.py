"""Test WSC: service by weight and by profile, priority of active runs, effects of each option."""

import json
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import prompt
from wsc_feeder import (
    LONG,
    TOKENS,
    WORKERS,
    cache,
    call,
    charge,
    directory,
    fill,
    made,
    queue,
    serve,
)

from fairserve.interactions.call import TokenUsage, client_path
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged, TenantChanged, UserChanged
from fairserve.scheduling.feeders.wsc_options import PAPER, VTC, WscOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import FEEDERS
from fairserve.throttling.base import Limits


def test_backlogged_users_are_served_by_weight():
    known = directory(app=(100, 10))
    known.take(UserChanged("t", "double", weight=2.0))
    feeder = made(known)
    fill(feeder, "double", 200)
    fill(feeder, "single", 200)
    users = [serve(feeder).user for _ in range(150)]
    assert users.count("double") == pytest.approx(100, abs=2)


@pytest.mark.parametrize(
    ("levels", "parts"),
    [
        ("tenant > user", {"big": 27 / 28, "small": 1 / 28, "other": 1, "vip": 2}),
        ("tenant > app > user", {"big": 3 / 4, "small": 1 / 4, "other": 1, "vip": 2}),
        ("user", {"big": 27, "small": 1, "other": 1, "vip": 2}),
    ],
)
def test_a_weight_affects_only_the_shares_of_siblings(levels, parts):
    """A user of weight 9 in an app of weight 3 leaves its tenant's share at 1 of 4."""
    known = directory(app=(100, 10), heavy=(100, 10))
    known.take(replace(known._apps["heavy"], weight=3.0))
    known.take(UserChanged("t", "big", weight=9.0))
    known.take(TenantChanged("rich", weight=2.0))
    feeder = made(known)
    owners = {"big": ("t", "heavy"), "small": ("t", "app")}
    owners |= {"other": ("plain", "app"), "vip": ("rich", "app")}
    for user, (tenant, app) in owners.items():
        for number in range(300):
            each = call(f"{user}-{number}", user, app=app)
            each.tenant = tenant
            each.client = client_path(each, levels)
            queue(feeder, each)
    users = [serve(feeder).user for _ in range(280)]
    whole = sum(parts.values())
    expected = {user: 280 * part / whole for user, part in parts.items()}
    assert {user: users.count(user) for user in owners} == pytest.approx(expected, abs=3)


def test_a_call_of_the_expected_size_costs_one_for_any_app():
    feeder = made(directory(small=(100, 10), large=(1000, 100)))
    fill(feeder, "s", 100, app="small")
    fill(feeder, "l", 100, app="large", tokens=prompt((2, 1000)), output=100)
    users = [serve(feeder).user for _ in range(60)]
    assert abs(users.count("s") - users.count("l")) <= 1
    assert feeder.counter(("t", "s")) == pytest.approx(30.0)


def test_the_charge_factor_combines_weight_and_profile():
    known = directory(small=(100, 20), large=(1000, 200))
    known.take(UserChanged("t", "vip", weight=4.0))
    feeder = made(known)
    charge_factors = {}
    for user, app in (("a", "small"), ("b", "large"), ("vip", "large")):
        queue(feeder, call(user, user, app=app))
        charge_factors[user] = feeder.dispatch(user, 0)
    assert charge_factors == pytest.approx({"a": 10.0, "b": 1.0, "vip": 0.25})


def test_an_active_run_has_priority_only_within_the_slack():
    for slack, first in ((math.inf, "running"), (1.0, "idle")):
        options = WscOptions(interaction_slack=slack, locality_slack=0)
        feeder = made(directory(app=(100, 10)), options)
        for number in range(6):
            queue(feeder, call(f"run-{number}", "running", run="R"))
            serve(feeder)
        queue(feeder, call("other", "idle"))  # lifted to the level of the last client to leave
        queue(feeder, call("other-2", "idle"))
        for number in range(3):  # three calls ahead of the idle user
            queue(feeder, call(f"more-{number}", "running", run="R"))
        charge(feeder, "running", 3.0)
        assert feeder.peek(WORKERS).user == first
    charge(feeder, "idle", 2.5)
    assert feeder.peek(WORKERS).user == "running", "within one typical call of the least served"


@pytest.mark.parametrize(("in_progress", "first"), [("run", "next"), ("batch", "waits")])
def test_a_pausing_run_keeps_its_priority_unless_only_the_batch_counts(in_progress, first):
    feeder = made(
        directory(app=(100, 10)),
        WscOptions(in_progress=in_progress, locality_slack=0, interaction_slack=10),
    )

    def next_of(*calls):
        for name, user, run in calls:
            queue(feeder, call(name, user, run=run))
        return feeder.peek(WORKERS).call_id

    queue(feeder, call("first", "runner", run="R"))
    feeder.dispatch("first", 0)
    restored = made(directory(app=(100, 10)), feeder.options)
    restored.restore(json.loads(json.dumps(feeder.snapshot())), {})
    assert restored.snapshot() == feeder.snapshot()
    assert next_of(("waits", "u", "W"), ("beside", "runner", "R")) == "beside", "R is in the batch"
    feeder.remove("beside")
    feeder.finish("first", TokenUsage(100, 0, 0, 10))
    assert next_of(("next", "runner", "R")) == first
    feeder.dispatch("next", 0)
    assert next_of(("last", "runner", "R")) == "last"
    feeder.requeue(call("next", "runner", run="R"))
    assert feeder.peek(WORKERS).call_id == first


def test_an_idle_agent_blocks_no_client():
    """Work is conserved: an active run with nothing queued is no reason to wait."""
    feeder = made(directory(app=(100, 10)), PAPER)
    queue(feeder, call("first", "thinker", run="R"))
    serve(feeder)
    queue(feeder, call("other", "u"))
    assert feeder.peek(WORKERS).call_id == "other"


def test_within_the_slack_the_longest_match_is_first():
    feeder = made(directory(app=(100, 10)), WscOptions(locality_slack=8, max_bypass=3))
    cache(feeder, LONG)
    fill(feeder, "cold", 10)
    fill(feeder, "hot", 30, tokens=np.concatenate([LONG, TOKENS[:4]]))
    users = [serve(feeder, cached=96).user for _ in range(12)]
    assert users[:3] == ["hot"] * 3
    assert users[3] == "cold", "passed over three times: its turn"
    strict = made(directory(app=(100, 10)), WscOptions(locality_slack=0))
    cache(strict, LONG)
    fill(strict, "cold", 10)
    fill(strict, "hot", 10, tokens=np.concatenate([LONG, TOKENS[:4]]))
    order = [serve(strict).user for _ in range(10)]
    assert order.count("hot") == order.count("cold") == 5


@pytest.mark.parametrize("bound", [0, 16])
def test_a_call_waits_for_at_most_so_many_cached_ones_of_its_own_user(bound):
    """No counter bounds this: within a client there is no fairness, so only the count ends it."""
    feeder = made(directory(app=(100, 10)), WscOptions(locality_slack=8, max_bypass=bound))
    cache(feeder, LONG)
    queue(feeder, call("cold", "u"))
    served = []
    while len(served) < 100 and "cold" not in served:
        queue(feeder, call(f"hot{len(served)}", "u", tokens=np.concatenate([LONG, TOKENS[:4]])))
        served.append(serve(feeder, cached=96).call_id)
    assert len(served) == (bound + 1 if bound else 100)


def test_the_slack_is_bounded_by_the_gain_of_a_match():
    """A prefix that all have cached is no reason to overtake the least served client."""
    short = LONG[:48]

    def next_after(served, *, gain):
        feeder = made(directory(app=(100, 10)), WscOptions(locality_slack=4, locality_gain=gain))
        cache(feeder, LONG)
        queue(feeder, call("waits", "waits", tokens=np.concatenate([short, TOKENS[:52]])))
        fill(feeder, "served", served, tokens=np.concatenate([LONG, TOKENS[:4]]))
        for number in range(served - 1):
            feeder.dispatch(f"served-{number}", 0)
        return feeder.peek(WORKERS).user

    # 96 and 48 of 100 tokens are cached: a gain of 0.48, so a slack of 1.92 calls of 1.0 each
    assert [next_after(served, gain=True) for served in (2, 3)] == ["served", "waits"]
    assert [next_after(served, gain=False) for served in (4, 5, 6)] == ["served", "served", "waits"]


def test_only_a_match_at_an_open_worker_counts():
    feeder = made(directory(app=(100, 10)))
    cache(feeder, LONG, "w0")
    cache(feeder, LONG[:32], "w1")
    queue(feeder, call("cold", "cold"))
    queue(feeder, call("hot", "hot", tokens=np.concatenate([LONG, TOKENS[:4]])))
    queue(feeder, call("warm", "warm", tokens=np.concatenate([LONG[:48], TOKENS[:52]])))
    assert feeder.peek(["w0", "w1"]).call_id == "hot"
    assert feeder.peek(["w1"]).call_id == "hot", "both match 32 there: the earlier one"
    feeder.remove("hot")
    assert feeder.peek(["w0"]).call_id == "warm"
    feeder.remove("warm")
    assert feeder.peek(["w0"]).call_id == "cold"


@given(st.integers(0, 2**32), st.sampled_from([0.0, 2.0, 8.0]))
def test_backlogged_counters_stay_within_slack_and_one_call(seed, slack):
    """The bound of section 3: the spread grows by the slack, no more."""
    rng = random.Random(seed)
    feeder = made(directory(app=(100, 10)), WscOptions(locality_slack=slack, interaction_slack=0))
    users = ["a", "b", "c", "d"]
    largest = 0.0
    cache(feeder, LONG)
    for user in users:
        own = LONG[: rng.choice([0, 16, 64])]
        for number in range(40):
            output = rng.randint(1, 40)
            largest = max(largest, (100 + output) / 110)
            tokens = np.concatenate([own, TOKENS[: 100 - len(own)]])
            queue(feeder, call(f"{user}-{number}", user, output=output, tokens=tokens))
    for _ in range(60):
        serve(feeder)
        values = [feeder.counter(("t", user)) for user in users]
        assert max(values) - min(values) <= slack + largest + 1e-9


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 8.0]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 16]),
)
def test_the_bound_holds_with_concurrency_and_wrong_profiles(seed, slack, at_once, times):
    """The bound S + 2 R U holds for any concurrency, wrong profiles, and late arrivals."""
    rng = random.Random(seed)
    options = WscOptions(locality_slack=slack, interaction_slack=min(1.0, slack))
    feeder = made(directory(app=(100, 10)), options)
    cache(feeder, LONG)
    largest = (100 + 10 * times) / 110
    running, number = {}, 0
    users = ["a", "b"]
    for step in range(250):
        if step in (60, 120):
            users.append(f"late-{step}")
        for user in users:  # all are backlogged all the time
            while sum(each.user == user for each in feeder.waiting()) < 2:
                number += 1
                own = LONG[: rng.choice([0, 64])] if user == "a" else TOKENS[:0]
                tokens = np.concatenate([own, TOKENS[: 100 - len(own)]])
                queue(feeder, call(f"{user}-{number}", user, tokens=tokens))
        if len(running) < at_once and rng.random() < 0.7:
            chosen = feeder.peek(WORKERS)
            feeder.dispatch(chosen.call_id, 0)
            feeder.charge(chosen.call_id, TokenUsage(100, 0, 0, 0))
            heavy = chosen.user == rng.choice(users) or rng.random() < 0.3
            running[chosen.call_id] = [chosen, 0, 10 * times if heavy else rng.randint(0, 10)]
        elif running:
            name = rng.choice(sorted(running))
            each = running[name]
            each[1] = min(each[2], each[1] + rng.randint(1, 40))
            feeder.decoded([(name, each[1])])
            if each[1] == each[2]:
                feeder.finish(name, TokenUsage(100, 0, 0, each[2]))
                del running[name]
        values = [feeder.counter(("t", user)) for user in users]
        spread = max(values) - min(values)
        assert spread <= slack + 2 * at_once * largest + 1e-9


@given(st.integers(0, 2**32), st.sampled_from(["expected", "finish"]))
def test_the_final_counter_equals_the_service(seed, mode):
    """Whatever was expected, reported in between, requeued or cancelled: only real usage is charged."""
    rng = random.Random(seed)
    feeder = made(directory(app=(100, 10)), WscOptions(charge=mode))
    total, running, number = 0.0, {}, 0
    for _ in range(120):
        action = rng.random()
        if action < 0.4:
            number += 1
            queue(feeder, call(f"c{number}", "u", output=rng.randint(1, 40)))
        elif action < 0.7 and len(feeder):
            chosen = feeder.peek(WORKERS)
            feeder.dispatch(chosen.call_id, 0)
            running[chosen.call_id] = (chosen, 0)
        elif running:
            call_id = rng.choice(list(running))
            chosen, output = running.pop(call_id)
            if action < 0.8:
                output = rng.randint(output, chosen.max_output_tokens)
                feeder.charge(call_id, TokenUsage(100, 0, 0, output))
                running[call_id] = (chosen, output)
            elif action < 0.9:
                feeder.requeue(chosen)
            else:
                output = rng.randint(output, chosen.max_output_tokens)
                feeder.finish(call_id, TokenUsage(100, 0, 0, output))
                total += (100 + output) / 110
    for call_id, (_, output) in running.items():
        feeder.finish(call_id, TokenUsage(100, 0, 0, output))
        total += (100 + output) / 110
    assert feeder.counter(("t", "u")) == pytest.approx(total)


@pytest.mark.parametrize("number", range(3))
def test_a_requeued_call_has_its_place_among_those_of_its_client(number):
    """Also one that was sent before an earlier one, which would be overtaken again."""
    feeder = made(directory(app=(100, 10)), WscOptions(interaction_priority=False))
    fill(feeder, "a", 3)
    call = next(each for each in feeder.waiting() if each.call_id == f"a-{number}")
    feeder.dispatch(call.call_id, 0)
    feeder.requeue(call)
    assert [serve(feeder).call_id for _ in range(3)] == ["a-0", "a-1", "a-2"]


def test_charges_may_be_normalised_by_the_interaction():
    known = Directory()
    profile = AppProfile((StageProfile(100, 0, 10),), calls_per_interaction=5)
    known.take(AppChanged("app", profile, Limits()))
    feeder = made(known, WscOptions(normalise="interaction"))
    fill(feeder, "u", 5)
    for _ in range(5):
        serve(feeder)
    assert feeder.counter(("t", "u")) == pytest.approx(1.0)


@pytest.mark.parametrize("options", [{}, {"charge_cached": True}, {"cached_weight": 1.0}])
def test_cached_tokens_may_be_charged_like_others(options):
    feeder = made(directory(app=(100, 10)), WscOptions(**options))
    fill(feeder, "u", 1)
    serve(feeder, cached=80)
    assert feeder.counter(("t", "u")) == pytest.approx(1.0)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("cached", [0, 80])
def test_a_call_of_observed_size_and_cached_share_costs_one(weight, cached):
    """The charge and the weight are the same function of a call."""
    known = Directory()
    profile = AppProfile((StageProfile(100, 0, 10, cached),), seen_stages=1)
    known.take(AppChanged("app", profile, Limits()))
    feeder = made(known, WscOptions(cached_weight=weight))
    fill(feeder, "u", 1)
    serve(feeder, cached=cached)
    assert feeder.counter(("t", "u")) == pytest.approx(1.0)


@pytest.mark.parametrize("cached", [0, 40, 100])
def test_no_declared_prompt_makes_a_call_cost_less_than_one(cached):
    """The cached part is unknown: a declared prompt counts as if all of it were cached."""
    feeder = made(directory(app=(100, 10)), WscOptions(charge_cached=False))
    fill(feeder, "u", 1)
    serve(feeder, cached=cached)
    assert feeder.counter(("t", "u")) == pytest.approx((110 - cached) / 10)


def test_invalid_options_and_ids_are_rejected():
    with pytest.raises(ValueError, match="charge is 'later'; allowed: expected, finish"):
        WscOptions(charge="later")
    with pytest.raises(ValueError, match="locality_slack is -1"):
        WscOptions(locality_slack=-1)
    feeder = made(directory())
    queue(feeder, call("x", "u"))
    with pytest.raises(ValueError, match="'x' is queued already"):
        queue(feeder, call("x", "u"))
    assert feeder.remove("nobody") is None
    with pytest.raises(KeyError):
        feeder.dispatch("nobody", 0)


@pytest.mark.parametrize(("name", "tokens_of_large"), [("vtc", 1), ("wsc", 9)])
def test_tokens_are_equal_for_all_apps_but_slices_are_not(name, tokens_of_large):
    """Two users are backlogged; the calls of one app are nine times as large."""
    known = directory(small=(100, 10), large=(900, 90))
    locality = Locality(seed=1)
    for worker in WORKERS:
        locality.add_worker(worker, 100_000)
    feeder = FEEDERS[name](known, locality)
    fill(feeder, "few", 100, app="large", tokens=prompt((9, 900)), output=90)
    fill(feeder, "many", 400, app="small", output=10)
    served = Counter()
    for _ in range(100):
        chosen = serve(feeder)
        served[chosen.user] += chosen.prompt_tokens + 2 * chosen.max_output_tokens
    assert served["few"] == pytest.approx(tokens_of_large * served["many"], rel=0.1)


def test_vtc_charges_prompts_at_selection_and_outputs_as_generated():
    known = directory(app=(100, 10))
    feeder = made(known, VTC)
    queue(feeder, call("a", "u"))
    feeder.dispatch("a", 0)
    unit = 1000 + 2 * 200  # of DEFAULT_PROFILE
    assert feeder.counter(("t", "u")) == pytest.approx(100 / unit)
    feeder.charge("a", TokenUsage(100, 0, 0, 0))
    feeder.decoded([("a", 7)])
    assert feeder.counter(("t", "u")) == pytest.approx((100 + 2 * 7) / unit)
