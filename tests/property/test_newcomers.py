"""Newcomers of an app share one user's entitlement: who has a history, its cost, and its bounds."""

import json
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.call import LEVELS, client_path
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness import newcomers as module
from fairserve.scheduling.fairness.newcomers import RETENTION_S, Newcomers
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile((StageProfile(32, 0, 8),), calls_per_interaction=1)
KNOWN = 13
INVENTED = 450


class Flood:
    """Users of app B have a history; then they and invented users of app A request all there is.

    Each user sends its calls one after the other, so a new user requests as soon as an old one.
    """

    def __init__(self, levels="tenant > user", system="fairserve", **options):
        config = SYSTEMS[system].with_options(
            {"levels": levels, "newcomer_growth_s": 0.0, "newcomer_slices": 3.0, **options}
        )
        self.cluster = VirtualCluster(config, workers=1, kv_tokens=400)
        for app in ("A", "B"):
            self.cluster.event(ev.AppChanged(app, PROFILE, Limits()))
        self.numbers = 0
        self.served = Counter()
        self.cluster.on_end = self.ended
        self.asking = True

    def send(self, app, user):
        self.numbers += 1
        tokens = prompt((self.numbers, 32))
        call = make_call(f"c{self.numbers}", app=app, user=user, tokens=tokens)
        self.cluster.at(self.cluster.now_s, call)

    def ended(self, call, outcome):
        self.served[call.app] += 1
        if self.asking:
            self.send(call.app, call.user)

    def give_b_a_history(self, growth_s=86_400.0):
        for number in range(KNOWN):
            self.send("B", f"b{number}")
        self.cluster.run(20)
        if self.cluster.dispatcher.newcomers is not None:
            self.cluster.dispatcher.newcomers.growth_s = growth_s

    def share_of_b(self, seconds):
        """Return B's share of the service during ``seconds``, while A's users send calls."""
        for number in range(INVENTED):
            self.send("A", f"a{number}")
        self.served.clear()
        self.cluster.run(self.cluster.now_s + seconds)
        return self.served["B"] / self.served.total()


def test_an_app_that_invents_users_has_the_share_of_one():
    """B keeps 13 of 14 parts; without the option 13 of 463."""
    shares = {}
    for newcomers in ("own", "shared"):
        flood = Flood(newcomers=newcomers)
        flood.give_b_a_history()
        shares[newcomers] = flood.share_of_b(60)
    assert shares["own"] < 0.1
    assert shares["shared"] == pytest.approx(KNOWN / (KNOWN + 1), abs=0.02)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [("user", KNOWN / (KNOWN + 1)), ("tenant > app > user", 1 / 2)],
)
def test_newcomers_under_other_levels(levels, expected):
    flood = Flood(levels, newcomers="shared")
    flood.give_b_a_history()
    assert flood.share_of_b(60) == pytest.approx(expected, abs=0.05)


def test_without_a_growth_bound_histories_cost_the_newcomer_share():
    """With k histories of H earned concurrently from one share, A has k + 1 parts."""
    flood = Flood(newcomers="shared")
    flood.give_b_a_history(growth_s=0.0)
    known, slices = flood.cluster.dispatcher.newcomers, 3.0
    share = flood.share_of_b(60)
    histories = sum(known.known("t", "A", f"a{n}", flood.cluster.now_s) for n in range(INVENTED))
    assert histories * slices <= flood.served["A"] + 1
    assert share >= KNOWN / (KNOWN + histories + 1) - 0.02


def test_a_user_with_operator_settings_is_no_newcomer():
    flood = Flood(newcomers="shared")
    flood.cluster.event(ev.UserChanged("t", "vip", weight=2.0))
    flood.send("A", "vip")
    flood.send("A", "other")
    flood.cluster.run(0.0)
    clients = {call.user: call.client for call in flood.cluster.calls.values()}
    assert clients == {"vip": ("t", "vip"), "other": ("t", "\0newcomers of A")}


@pytest.mark.parametrize("system", ["d2lpm", "central-dlpm", "fcfs", "fs-wi"])
def test_histories_are_recorded_under_every_system(system):
    flood = Flood(system=system, newcomers="shared")
    flood.give_b_a_history()
    known = flood.cluster.dispatcher.newcomers
    assert all(known.known("t", "B", f"b{n}", flood.cluster.now_s) for n in range(KNOWN))
    assert not known.known("t", "A", "b0", flood.cluster.now_s)


def test_a_restored_dispatcher_continues_unchanged():
    flood = Flood(newcomers="shared", newcomer_growth_s=30.0)
    for user in range(6):
        flood.send("A", f"a{user}")
    flood.cluster.run(40)
    dispatcher = flood.cluster.dispatcher
    state = json.loads(json.dumps(dispatcher.snapshot(flood.cluster.now_s)))
    restored = VirtualCluster(dispatcher.system, workers=0).dispatcher
    restored.restore(state, 1000.0)
    again = json.loads(json.dumps(restored.snapshot(1000.0)))
    assert again["newcomers"] == nearly_equal(state["newcomers"])
    assert len(restored.newcomers) == len(dispatcher.newcomers) == 6
    assert any(restored.newcomers.known("t", "A", f"a{n}", 1000.0) for n in range(6))


def nearly_equal(plain):
    if isinstance(plain, dict):
        return {key: nearly_equal(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [nearly_equal(value) for value in plain]
    return pytest.approx(plain, abs=1e-6) if isinstance(plain, float) else plain


class Plain:
    """The rule written out, with nothing bounded."""

    def __init__(self, slices, growth_s):
        self.slices, self.growth_s = slices, growth_s
        self.known, self.earned, self.place_s = {}, Counter(), {}

    def forget(self, app, now_s):
        for key in [k for k, last_s in self.known.items() if now_s - last_s > RETENTION_S]:
            if key[0] == app:
                del self.known[key]

    def is_known(self, key, now_s):
        return key in self.known and now_s - self.known[key] <= RETENTION_S

    def ended(self, key, common, slices, now_s):
        app = key[0]
        self.forget(app, now_s)
        if key in self.known:
            self.known[key] = now_s
        elif common and slices > 0:
            self.place_s.setdefault(app, now_s + self.growth_s)
            self.earned[key] += slices
            if self.earned[key] >= self.slices and now_s >= self.place_s[app]:
                del self.earned[key]
                self.known[key] = now_s
                known = sum(each[0] == app for each in self.known)
                self.place_s[app] = now_s + self.growth_s / (1 + known)


@given(
    st.integers(0, 2**32),
    st.sampled_from(LEVELS),
    st.sampled_from([0.0, 100.0, 3000.0]),
    st.sampled_from([0.0, 1.0, 5.0]),
)
def test_histories_equal_those_of_the_plain_rule(seed, levels, growth_s, slices):
    """The state equals that of the rule written out, within both bounds, also after a restore."""
    rng, plain = random.Random(seed), Plain(slices, growth_s)
    newcomers, now_s = Newcomers(Directory(), slices, growth_s), 0.0
    charged, histories, granted = Counter(), Counter(), {}
    waiting = []
    for number in range(150):
        now_s += rng.choice([0.0, 1.0, 20.0, 500.0])
        if rng.random() < 0.01:
            now_s += RETENTION_S
        tenant, app = rng.choice(["t0", "t1"]), rng.choice(["a", "b"])
        user = f"u{rng.randrange(8)}"
        call = make_call(f"c{number}", tenant=tenant, app=app, user=user)
        own = client_path(call, levels)
        call.client = newcomers.client_of(call, own, now_s)
        key = ((tenant, app), user)
        assert (call.client == own) is plain.is_known(key, now_s)
        waiting.append(call)
        if rng.random() < 0.7:
            done = waiting.pop(rng.randrange(len(waiting)))
            key = ((done.tenant, done.app), done.user)
            common = done.client != client_path(done, levels)
            cost = rng.choice([0.0, 0.3, 1.0, 4.0])
            before = key in plain.known
            newcomers.ended(done, cost, now_s)
            plain.ended(key, common, cost, now_s)
            charged[key[0]] += cost * common
            if key in plain.known and not before:
                histories[key[0]] += 1
                granted.setdefault(key[0], []).append(now_s)
            assert histories[key[0]] * slices <= charged[key[0]] + 1e-6
        if rng.random() < 0.05:
            state = json.loads(json.dumps(newcomers.snapshot(now_s)))
            newcomers = Newcomers(Directory(), slices, growth_s)
            newcomers.restore(state, now_s)
    for times in granted.values() if growth_s else ():
        for first in range(len(times)):
            for last in range(first, len(times)):
                made, took_s = last - first + 1, times[last] - times[first]
                most = (2 + first) * math.exp(min(50.0, took_s / growth_s))
                assert 1 + first + made <= most * (1 + 1e-9)


def test_clients_of_newcomers_are_separate():
    """They differ by tenant and app; a user with the name of such a client never has a history."""
    newcomers, clients = Newcomers(Directory(), 0.0, 0.0), set()
    for levels in LEVELS:
        for tenant in ("t", "t/a"):
            for app in ("a", "b"):
                call = make_call("c", tenant=tenant, app=app, user="u")
                clients.add(newcomers.client_of(call, client_path(call, levels), 0.0))
    assert len(clients) == 12
    call = make_call("c", app="a", user="\0newcomers of b")
    for _ in range(3):
        call.client = newcomers.client_of(call, client_path(call, "tenant > user"), 0.0)
        assert call.client == ("t", "\0newcomers of a")
        newcomers.ended(call, 1.0, 0.0)
    assert len(newcomers) == 0


def test_histories_are_bounded_at_the_largest_app_of_the_largest_tenant(monkeypatch):
    monkeypatch.setattr(module, "MAX_USERS", 100)
    monkeypatch.setattr(module, "_ROOM", 10)
    newcomers = Newcomers(Directory(), 1.0, 0.0)

    def serve(tenant, app, user, slices):
        call = make_call("c", tenant=tenant, app=app, user=user)
        call.client = newcomers.client_of(call, (tenant, user), 0.0)
        newcomers.ended(call, slices, 0.0)

    for number in range(20):
        serve("t", "B", f"b{number}", 1.0)
        serve("small", "C", f"c{number}", 0.5)
    for number in range(30):
        serve("t", "A", f"real{number}", 1.0)
    for number in range(1000):
        serve("t", "A", f"a{number}", 0.5)
        assert len(newcomers) <= 100
    assert all(newcomers.known("t", "B", f"b{number}", 0.0) for number in range(20))
    assert all(newcomers.known("t", "A", f"real{number}", 0.0) for number in range(30))
    for number in range(20):
        serve("small", "C", f"c{number}", 0.5)
        assert newcomers.known("small", "C", f"c{number}", 0.0)


def test_the_least_recently_served_histories_are_evicted_first(monkeypatch):
    monkeypatch.setattr(module, "MAX_USERS", 10)
    monkeypatch.setattr(module, "_ROOM", 1)
    newcomers = Newcomers(Directory(), 1.0, 0.0)
    for user in [*range(10), 0, 10]:
        call = make_call("c", user=f"u{user}")
        call.client = newcomers.client_of(call, ("t", call.user), 0.0)
        newcomers.ended(call, 1.0, 0.0)
    assert [newcomers.known("t", "app", f"u{user}", 0.0) for user in (0, 1, 10)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"newcomers": "some"}, "newcomers is 'some'; allowed: own, shared"),
        ({"newcomer_slices": -1.0}, "newcomer_slices is -1.0; allowed: not negative"),
        (
            {"newcomer_growth_s": math.inf},
            "newcomer_growth_s is inf; allowed: not negative, finite",
        ),
    ],
)
def test_invalid_input_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        SYSTEMS["fairserve"].with_options(options)
