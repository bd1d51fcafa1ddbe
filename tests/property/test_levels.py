"""With levels, a tenant's share does not depend on how many users it names.

VTC on one worker, outputs reserved, and WSC, with paths ``tenant > user`` and ``tenant > app >
user``. The bounds are those of one level, among tenants and among the users of each.
"""

import json
import random
from collections import Counter, defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_worker import OneWorker
from virtual_cluster import make_call, prompt

from fairserve.benchmarks.policies.drr import Drr, DrrOptions
from fairserve.benchmarks.policies.lcf import Lcf
from fairserve.benchmarks.policies.vtc_oracle import VtcOracle
from fairserve.interactions.call import TokenUsage, client_id
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.throttling.base import Limits

EPS = 1e-6
CAPACITY = 100
LONGEST_PROMPT = 40
U = max(LONGEST_PROMPT, 2 * CAPACITY)


def differences(services, among):
    """Return the largest range over time of Wf - Wg, for any two of ``among``."""
    worst = 0.0
    for f in among:
        for g in among:
            over_time = [service[f] - service[g] for service in services]
            worst = max(worst, max(over_time) - min(over_time))
    return worst


def by_level(service, depth):
    """Return the service of the nodes at a depth, from the service of client ids."""
    sums = defaultdict(float)
    for name, tokens in service.items():
        sums["/".join(name.split("/")[:depth])] += tokens
    return sums


def flood(scheduler, clients, *, seed=0, steps=600):
    """Keep all backlogged; return the service by client id after every step."""
    rng = random.Random(seed)
    worker = OneWorker(scheduler, CAPACITY)
    services = []
    for _ in range(steps):
        waiting = Counter(call.client_id for call in worker.waiting.values())
        for client in clients:
            for _ in range(20 - waiting[client]):
                worker.add(client, rng.choice([1, LONGEST_PROMPT, 10]), rng.randint(5, 20))
        worker.step()
        assert worker.backlogged() == set(clients)
        services.append(dict(worker.service))
    return services


BOUNDS = {
    "vtc": (Vtc, 2 * U),
    "drr": (lambda: Drr(DrrOptions(quantum=50)), 2 * (LONGEST_PROMPT + 2 * CAPACITY + 2 * 50)),
}
"""Schedulers, and the bound on the service difference of backlogged siblings."""


@settings(max_examples=settings.default.max_examples // 5)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 7, 40]), st.sampled_from(sorted(BOUNDS)))
def test_invented_users_gain_their_tenant_nothing(seed, users, name):
    """Theorem 4.4 holds among tenants and among the users of one tenant; C.2's bound for DRR."""
    scheduler, bound = BOUNDS[name]
    crowd = [f"crowd/u{number}" for number in range(users)]
    services = flood(scheduler(), ["single/u", *crowd], seed=seed)
    tenants = [by_level(service, 1) for service in services]
    assert differences(tenants, ["single", "crowd"]) <= bound
    assert differences(services[::5], crowd) <= bound
    final = tenants[-1]
    assert final["single"] > 10 * U
    assert final["single"] / final["crowd"] == pytest.approx(1, abs=0.2)


def test_bounds_hold_at_three_levels():
    """The levels are tenants, the apps of a tenant, and the users of an app."""
    clients = ["a/app/u", *(f"b/x/u{n}" for n in range(9)), "b/y/u", "b/y/v"]
    services = flood(Vtc(), clients, steps=800)
    assert differences([by_level(s, 1) for s in services[::5]], ["a", "b"]) <= 2 * U
    assert differences([by_level(s, 2) for s in services[::5]], ["b/x", "b/y"]) <= 2 * U
    assert differences(services[::5], [f"b/x/u{n}" for n in range(9)]) <= 2 * U
    assert differences(services[::5], ["b/y/u", "b/y/v"]) <= 2 * U
    final = services[-1]
    assert final["a/app/u"] > 10 * U
    assert final["b/y/u"] > 2 * U


@settings(max_examples=settings.default.max_examples // 6)
@given(st.integers(0, 2**32), st.sampled_from([None, "mean", "oracle"]))
def test_the_lemma_holds_among_siblings_while_clients_come_and_go(seed, predict):
    """Lemma 4.3 and Theorem 4.4 hold at both levels, with prediction as on one level."""
    rng = random.Random(seed)
    worker = OneWorker(
        VtcOracle() if predict == "oracle" else Vtc(VtcOptions(predict=predict)), CAPACITY
    )
    clients = [f"t{n % 3}/u{n}" for n in range(9)]
    scheduler, start, watched = (
        worker.scheduler,
        {},
        {"spread": 0.0, "difference": 0.0, "ahead": 0.0},
    )

    def observe():
        queued = {tuple(client.split("/")) for client in worker.backlogged()}
        nodes = queued | {path[:1] for path in queued}
        service = {**by_level(worker.service, 1), **worker.service}
        for path in nodes:
            watched["ahead"] = max(watched["ahead"], scheduler._counters.outstanding(path))
        for pair in [pair for pair in start if not set(pair) <= nodes]:
            del start[pair]
        for f in nodes:
            for g in nodes:
                if len(f) == len(g) and f[:-1] == g[:-1]:
                    spread = scheduler.counter(f) - scheduler.counter(g)
                    watched["spread"] = max(watched["spread"], spread)
                    difference = service["/".join(f)] - service["/".join(g)]
                    low, high = start.get((f, g), (difference, difference))
                    start[f, g] = low, high = min(low, difference), max(high, difference)
                    watched["difference"] = max(watched["difference"], high - low)

    worker.observe = observe
    for _ in range(100):
        for client in clients:
            if rng.random() < (0.4 if client == "t0/u0" else 0.08):
                for _ in range(rng.choice([1, 1, 8])):
                    worker.add(client, rng.choice([1, LONGEST_PROMPT]), rng.randint(1, 30))
        worker.step()
    most = U + 2 * watched["ahead"]
    assert watched["spread"] <= most + EPS
    assert watched["difference"] <= 2 * most + EPS


def test_a_returning_tenant_does_not_displace_the_others():
    """The lift applies among tenants; LCF, which has none, lets the tenant catch up."""
    most = {}
    for scheduler in (Vtc(), Lcf()):
        worker = OneWorker(scheduler, CAPACITY)
        for number in range(2000):
            worker.add(f"steady/u{number % 5}", 20, 10)
        for _ in range(1500):
            worker.step()
        before = by_level(worker.service, 1)["steady"]
        for number in range(1000):
            worker.add(f"returned/u{number % 2}", 20, 10)
        for _ in range(500):
            worker.step()
        service = by_level(worker.service, 1)
        most[type(scheduler)] = service["returned"] - (service["steady"] - before)
    assert most[Vtc] <= 2 * U
    assert most[Lcf] > 5 * U


class Flat:
    """VTC as in the paper, without levels and with trivial data structures."""

    def __init__(self):
        self.value, self.queues, self.last_left = defaultdict(float), {}, None

    def add(self, call):
        if call.client_id not in self.queues:
            level = min((self.value[c] for c in self.queues), default=self.value[self.last_left])
            self.value[call.client_id] = max(self.value[call.client_id], level)
        queue = self.queues.setdefault(call.client_id, deque())
        queue.append(call)
        self.queues[call.client_id] = deque(sorted(queue, key=lambda waiting: waiting.arrival))

    def next(self):
        if not self.queues:
            return None
        client = min(self.queues, key=lambda c: (self.value[c], self.queues[c][0].arrival))
        return self.queues[client][0]

    def remove(self, call):
        self.queues[call.client_id].remove(call)
        if not self.queues[call.client_id]:
            del self.queues[call.client_id]
            self.last_left = call.client_id


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_one_level_gives_the_schedule_of_the_flat_algorithm(seed, clients):
    """The history has arrivals, decoded tokens, ends, cancellations and preemptions between passes."""
    rng = random.Random(seed)
    vtc, flat = Vtc(), Flat()
    running, waiting, paid = {}, {}, set()
    for number in range(60):
        for _ in range(rng.choice([0, 1, 1, 4])):
            call = LocalCall(
                f"x{len(paid)}-{number}-{rng.random()}", f"c{rng.randrange(clients)}", 1, 9
            )
            call.prompt_tokens = rng.randint(1, 9)
            vtc.add(call)
            flat.add(call)
            waiting[call.call_id] = call
        vtc.start_pass(None)
        for _ in range(rng.randrange(5)):
            offered = vtc.peek()
            assert offered is flat.next()
            if offered is None:
                break
            vtc.accept(0)
            flat.remove(offered)
            if offered.call_id not in paid:
                flat.value[offered.client_id] += offered.prompt_tokens
            paid.add(offered.call_id)
            running[offered.call_id] = waiting.pop(offered.call_id)
        if rng.random() < 0.2 and waiting:
            cancelled = waiting.pop(rng.choice(list(waiting)))
            vtc.finish(cancelled.call_id)
            flat.remove(cancelled)
        for call_id, call in list(running.items()):
            vtc.decoded(call_id, 1)
            flat.value[call.client_id] += 2
            if rng.random() < 0.2:
                del running[call_id]
                vtc.finish(call_id)
            elif rng.random() < 0.1:
                waiting[call_id] = running.pop(call_id)
                vtc.requeue(call_id)
                flat.add(call)
        assert len(vtc) == len(waiting)
        for client in flat.queues:
            assert vtc.counter((client,)) == flat.value[client]


# --- WSC ------------------------------------------------------------------------------------------

WORKERS = ["w0"]
LONG = prompt((3, 96))
SHORT = prompt((1, 100))


def feeder(**options):
    locality = Locality(seed=1)
    locality.add_worker("w0", 100_000)
    known = Directory()
    profile = AppProfile((StageProfile(100, 0, 10),))
    known.take(AppChanged("app", profile, Limits()))
    return WscFeeder(known, locality, WscOptions(**options))


def call(call_id, path, *, output=10, tokens=SHORT, run=None):
    new = make_call(call_id, tenant=path[0], user=path[-1], tokens=tokens, output=output, run=run)
    new.stage, new.expected_output_tokens, new.client = 1, output, path
    return new


def queue(wsc, new):
    wsc._locality.register(new)
    wsc.add(new)


def cache_long(wsc):
    seed = call("seed", ("nobody", "n"), tokens=LONG)
    wsc._locality.register(seed)
    wsc._locality.placed(seed, "w0")
    wsc._locality.forget("seed")


def serve(wsc, *, end=True):
    chosen = wsc.peek(WORKERS)
    wsc.dispatch(chosen.call_id, 0)
    if end:
        usage = TokenUsage(chosen.input_tokens, 0, 0, chosen.max_output_tokens)
        wsc.finish(chosen.call_id, usage)
    return chosen


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 30]), st.sampled_from([0.0, 3.0]))
def test_wsc_serves_tenants_equally_whatever_users_they_name(seed, users, slack):
    """Dispatches differ by the slack and one call, among tenants and among the users of one."""
    rng = random.Random(seed)
    wsc = feeder(locality_slack=slack, interaction_slack=slack)
    cache_long(wsc)
    cached = np.concatenate([LONG, SHORT[:4]])
    paths = [("single", "u"), *(("crowd", f"u{number}") for number in range(users))]
    for path in paths:
        tokens = cached if path[0] == "crowd" and rng.random() < 0.8 else SHORT
        for number in range(140):
            queue(
                wsc, call(f"{path}-{number}", path, tokens=tokens, run=f"run-{path}-{number % 9}")
            )
    served = Counter()
    for _ in range(130):
        path = serve(wsc, end=rng.random() < 0.9).client
        served[path] += 1
        served[path[:1]] += 1
        assert abs(served["single",] - served["crowd",]) <= slack + 1
        own = [served[path] for path in paths[1:]]
        assert max(own) - min(own) <= slack + 1


def test_a_slack_is_measured_at_each_level():
    """A user with little service gains nothing if its tenant had more than the slack."""
    wsc = feeder(locality_slack=2)
    cache_long(wsc)
    cached = np.concatenate([LONG, SHORT[:4]])
    queue(wsc, call("cold", ("poor", "u")))
    queue(wsc, call("hot", ("rich", "new"), tokens=cached))
    rich = wsc._counters.client(("rich", "old"))
    assert wsc.peek(WORKERS).call_id == "hot"
    wsc._counters.charge(rich, 2.5)
    assert wsc.peek(WORKERS).call_id == "cold", "its tenant is past the slack"
    queue(wsc, call("warm", ("poor", "v"), tokens=cached))
    assert wsc.peek(WORKERS).call_id == "warm"
    wsc._counters.charge(wsc._counters.client(("poor", "v")), 2.5)
    assert wsc.peek(WORKERS).call_id == "hot", "both tenants are level, v is past the slack"


def test_equal_matches_are_decided_by_counters_level_by_level():
    wsc = feeder(locality_slack=8)
    cache_long(wsc)
    cached = np.concatenate([LONG, SHORT[:4]])
    for name, path in (("x", ("a", "x")), ("y", ("b", "y")), ("z", ("b", "z"))):
        queue(wsc, call(name, path, tokens=cached))
    assert wsc.peek(WORKERS).call_id == "x", "the earliest"
    wsc._counters.charge(wsc._counters.client(("a", "other")), 1.0)
    wsc._counters.charge(wsc._counters.client(("b", "y")), 0.5)
    assert wsc.peek(WORKERS).call_id == "z", "(0.5, 0) before (0.5, 0.5) and (1, 0)"


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_restored_snapshot_of_wsc_continues_as_the_original(seed, levels):
    """The state passes through JSON, with dispatched and queued calls, predictions and active runs."""
    rng = random.Random(seed)
    names = [(f"t{n % 2}", f"a{n % 3}", f"u{n}")[3 - levels :] for n in range(7)]
    calls, running = {}, []

    def do(feeders, number, action):
        if action < 0.5:
            path = names[number % len(names)]
            new = call(f"c{number}", path, output=5 + number % 20, run=f"r{number % 5}")
            calls[new.call_id] = new
            for wsc in feeders:
                queue(wsc, new)
        elif action < 0.8 and len(feeders[0]):
            chosen = {serve(wsc, end=False).call_id for wsc in feeders}
            assert len(chosen) == 1
            running.extend(chosen)
        elif running:
            ended = running.pop(number % len(running))
            for wsc in feeders:
                if action < 0.85:
                    wsc.requeue(calls[ended])
                else:
                    wsc.finish(ended, TokenUsage(100, 0, 0, calls[ended].max_output_tokens))

    original = feeder(max_bypass=2)
    for number in range(60):
        do([original], number, rng.random())
    restored = WscFeeder(original._directory, original._locality, original.options)
    restored.restore(json.loads(json.dumps(original.snapshot())), calls)
    assert restored.snapshot() == original.snapshot()
    for number in range(60, 120):
        do([original, restored], number, rng.random())
    assert restored.snapshot() == original.snapshot()


def test_the_path_of_a_worker_call_comes_from_its_client_id():
    path = ("tenant/with a slash", "user")
    made = LocalCall("x", client_id(path), 10, 1)
    vtc = Vtc()
    vtc.add(made)
    assert vtc._counters.queued(path) == vtc._counters.queued(path[:1]) == 1
