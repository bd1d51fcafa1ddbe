"""The theorems of the DLPM paper on one worker, on randomised backlogs, with outputs reserved."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_worker import FixedCache, OneWorker
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm, DlpmOptions
from fairserve.scheduling.local.lpm import Lpm, LpmOptions
from fairserve.scheduling.local.vtc import Vtc, VtcOptions
from fairserve.scheduling.registry import SYSTEMS


class Engine:
    """One worker that reserves prompt and output, decodes one token per call and step."""

    def __init__(self, options, capacity):
        self.scheduler = Dlpm(options)
        self.options, self.capacity, self.held = options, capacity, 0
        self.cache = FixedCache()
        self.waiting = {}
        self.running = {}
        self.service, self.order = {}, []
        self.numbers = 0

    def add(self, client, prompt_tokens, output, matched=0, weight=1.0):
        self.numbers += 1
        call_id = f"{client}-{self.numbers}"
        self.cache.matches[call_id] = min(matched, prompt_tokens - 1)
        call = LocalCall(call_id, client, prompt_tokens, output, weight=weight)
        self.scheduler.add(call)
        self.waiting[call_id] = call
        self.service.setdefault(client, 0.0)
        return call_id

    def step(self):
        self.scheduler.start_pass(self.cache)
        admitted = 0
        while (call := self.scheduler.peek()) is not None:
            matched = self.cache.matched_tokens(call)
            need = call.prompt_tokens - matched + call.max_output_tokens
            if self.held + need > self.capacity:
                self.scheduler.skip()
                continue
            self.scheduler.accept(matched)
            del self.waiting[call.call_id]
            admitted += 1
            self.held += need
            self.running[call.call_id] = [call, need, 0]
            self.order.append(call.call_id)
            self.service[call.client_id] += self.options.we * (call.prompt_tokens - matched)
        for call_id, state in list(self.running.items()):
            call = state[0]
            state[2] += 1
            self.scheduler.decoded(call_id, 1)
            self.service[call.client_id] += self.options.wq
            if state[2] == call.max_output_tokens:
                del self.running[call_id]
                self.held -= state[1]
                self.scheduler.finish(call_id)
        return admitted


def backlog(engine, rng, clients, per_client, longest_prompt, longest_output):
    for _ in range(per_client):
        for client in clients:
            prompt_tokens = rng.randint(1, longest_prompt)
            matched = rng.choice([0, 0, prompt_tokens // 2, prompt_tokens - 1])
            engine.add(client, prompt_tokens, rng.randint(1, longest_output), matched)


def waiting_clients(engine):
    return {call.client_id for call in engine.waiting.values()}


CAPACITY = 120
LONGEST_PROMPT = 40
LONGEST_OUTPUT = 16
U = LONGEST_PROMPT + 2 * CAPACITY
"""``we * Linput + wq * M`` with outputs reserved: no more than M tokens can be decoded in a batch."""

FLAT = ["a", "b", "c", "d"]
NESTED = ["x/u0", "y/u0", "y/u1", "y/u2", "z/u0", "z/u1"]
quanta = st.sampled_from([1.0, 40.0, 300.0])


class Demand:
    """Clients that flood, that come and go, and that send a call now and then; and who got what."""

    def __init__(self, seed, clients, quantum, **options):
        self.rng = random.Random(seed)
        options = {"refill_when_stuck": False, "max_bypass": 0, **options}
        self.engine = Engine(DlpmOptions(quantum=quantum, **options), CAPACITY)
        self.clients = clients
        self.kinds = {client: self.rng.choice(["flood", "waves", "light"]) for client in clients}
        self.kinds[clients[0]] = "flood"
        for client in clients:
            self.engine.service[client] = 0.0

    def send(self, client):
        prompt_tokens = self.rng.randint(1, LONGEST_PROMPT)
        matched = self.rng.choice([0, 0, prompt_tokens // 2, prompt_tokens - 1])
        return self.engine.add(client, prompt_tokens, self.rng.randint(1, LONGEST_OUTPUT), matched)

    def step(self):
        waiting = [call.client_id for call in self.engine.waiting.values()]
        for client in self.clients:
            kind = self.kinds[client]
            if kind == "flood":
                for _ in range(6 - waiting.count(client)):
                    self.send(client)
            elif kind == "light":
                if self.rng.random() < 0.03:
                    self.send(client)
            elif kind == "waves" and self.rng.random() < 0.02:
                for _ in range(self.rng.randint(1, 20)):
                    self.send(client)
        return self.engine.step()

    def service(self, account):
        """Of a client, or of all clients below an outer level."""
        return sum(
            service
            for client, service in self.engine.service.items()
            if client == account or client.startswith(account + "/")
        )

    def groups(self):
        """Groups of siblings, level by level."""
        tenants = sorted({client.split("/")[0] for client in self.clients})
        below = [[c for c in self.clients if c.startswith(tenant + "/")] for tenant in tenants]
        return [group for group in [tenants, *below] if group]

    def backlogged(self, account):
        return any(
            c == account or c.startswith(account + "/") for c in waiting_clients(self.engine)
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([FLAT, NESTED]), quanta, st.booleans(), st.booleans())
def test_deficits_stay_between_what_runs_and_one_quantum(seed, clients, quantum, stuck, bypass):
    """Theorem A.1: -U <= q <= Q^u at every level, with either option, too."""
    demand = Demand(seed, clients, quantum, refill_when_stuck=stuck, max_bypass=16 * bypass)
    for _ in range(200):
        demand.step()
        for group in demand.groups():
            for account in group:
                assert -U <= demand.engine.scheduler.deficit(account) <= quantum


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([FLAT, NESTED]), quanta)
def test_service_of_siblings_in_any_interval(seed, clients, quantum):
    """Theorem 4.2: Wf >= Wg - 2U - 2Q^u in every interval in which f is backlogged, whatever g does.

    Both ways it is Theorem 4.1. With levels it holds among the siblings of each level: a tenant has
    one tenant's share however many users it has, and so have its users among themselves. The paper's
    own rule, since ``refill_when_stuck`` refills past a client that has a call waiting.
    """
    demand = Demand(seed, clients, quantum)
    least = {}
    for _ in range(400):
        demand.step()
        for group in demand.groups():
            for f, g in itertools.permutations(group, 2):
                if not demand.backlogged(f):
                    least.pop((f, g), None)
                    continue
                ahead = demand.service(g) - demand.service(f)
                least[f, g] = min(ahead, least.get((f, g), ahead))
                assert ahead - least[f, g] <= 2 * (U + quantum)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([FLAT, NESTED]), quanta)
def test_latency_of_a_client_that_had_nothing_here(seed, clients, quantum):
    """Theorem A.2: D - A <= 2 (n - 1) (Q^u + U) / a for the next call of a client without any.

    A step decodes a token at least, so the capacity is ``wq`` a step. With levels, while the call of a
    user waits its tenant is backlogged: other tenants get 2 (U + Q^u) more than its other users get.
    """
    demand = Demand(seed, clients, quantum)
    client = clients[-1]
    demand.kinds[client] = "none"
    engine, tenant = demand.engine, client.split("/")[0]
    tenants, siblings = demand.groups()[0], [c for c in clients if c.startswith(tenant + "/")]
    own = 2 * (quantum + U) * max(0, len(siblings) - 1)
    bound = own + (len(tenants) - 1) * (own + 2 * (quantum + U))
    for _ in range(6):
        for _ in range(demand.rng.randrange(40)):
            demand.step()
        call_id, before = demand.send(client), sum(engine.service.values())
        steps = 0
        while call_id in engine.waiting:
            served = sum(engine.service.values()) - before
            assert served <= bound
            assert 2 * steps <= bound
            demand.step()
            steps += 1
        while any(state[0].client_id == client for state in engine.running.values()):
            demand.step()


def test_a_tenant_with_many_users_has_one_tenants_share():
    engine = Engine(DlpmOptions(quantum=100), CAPACITY)
    users = ["one/u", *(f"many/u{number}" for number in range(8))]
    for _ in range(300):
        for user in users:
            engine.add(user, 20, 5)
    for _ in range(600):
        engine.step()
    many = [service for client, service in engine.service.items() if client != "one/u"]
    assert abs(engine.service["one/u"] - sum(many)) <= 2 * (20 + 2 * CAPACITY + 100)
    assert min(many) > 0
    assert max(many) - min(many) <= 2 * (20 + 2 * CAPACITY + 100)
    assert engine.service["one/u"] > 3 * max(many)


def test_latency_on_several_workers():
    """Theorem A.4: behind D2LPM, too, a call of a client without any waits a bounded time.

    Its worker serves the other ``n - 1`` clients at most ``2 (U + Q^u)`` each before it, so the paper's
    bound, which is as many times larger as there are workers, is never reached.
    """
    quantum, workers, clients = 50.0, 3, 4
    most = 48 + 2 * 300
    system = SYSTEMS["d2lpm"].with_options(
        {"local.quantum": quantum, "local.refill_when_stuck": False, "local.max_bypass": 0}
    )
    cluster = VirtualCluster(system, workers=workers, kv_tokens=300, step_s=1.0)
    rng, light = random.Random(4), []
    for number in range(1500):
        tokens = prompt((rng.randrange(4), 16), (number, rng.randint(1, 32)))
        user = f"u{number % (clients - 1)}"
        call = make_call(f"c{number}", user=user, tokens=tokens, output=rng.randint(1, 20))
        cluster.at(rng.uniform(0, 50), call)

    def send_another(call, outcome):
        if call.user == "light" and cluster.now_s < 200:
            tokens = prompt((len(light), 40))
            another = make_call(f"light{len(light)}", user="light", tokens=tokens, output=4)
            light.append(another.call_id)
            cluster.at(cluster.now_s + rng.uniform(1, 20), another)
            cluster.arrivals.sort(key=lambda arrival: arrival[:2])

    cluster.on_end = send_another
    send_another(make_call("first", user="light"), "completed")
    cluster.run(400.0)
    waits = [cluster.started_s[i] - cluster.arrived_s[i] for i in light if i in cluster.started_s]
    flood = [cluster.started_s[i] - cluster.arrived_s[i] for i in cluster.started_s if i[0] == "c"]
    assert len(waits) > 5
    assert max(waits) <= (clients - 1) * workers * 2 * (most + quantum) / 2
    assert max(waits) < max(flood) / 4, "and far from it here"


def test_a_quantum_near_zero_is_vtc_with_the_extend_cost():
    """The same schedule, where room is the same for all calls and the match decides nothing.

    One call a step: a walk that takes several goes on, after a refill, behind the last one.
    """

    class Blind(FixedCache):
        def match(self, call):
            return 0, None, None

    for seed in range(20):
        orders = []
        for scheduler in (
            Dlpm(DlpmOptions(quantum=2**-20, refill_when_stuck=False, max_bypass=0)),
            Vtc(VtcOptions(cost="extend")),
        ):
            rng, worker = random.Random(seed), OneWorker(scheduler, 10**9, max_batch=1)
            worker.cache = Blind()
            for _ in range(25):
                for client in "abcd":
                    tokens = rng.randint(1, 60)
                    worker.add(client, tokens, rng.randint(1, 9), matched=rng.randrange(tokens))
            while worker.backlogged() == set("abcd"):
                worker.step()
            orders.append(worker.order)
        assert len(orders[0]) > 40
        assert orders[0] == orders[1]


def test_a_quantum_without_end_is_lpm():
    """The same schedule, for clients that all have been refilled once."""
    for seed in range(20):
        orders = []
        for scheduler in (
            Dlpm(DlpmOptions(quantum=1e15, max_bypass=0)),
            Lpm(LpmOptions(when_full="skip")),
        ):
            rng, worker = random.Random(seed), OneWorker(scheduler, 300)
            for client in "abcd":
                worker.add(client, 400, 1)  # never fits: a client that is idle is forgotten
            for _ in range(80):
                for client in rng.sample("abcd", rng.randrange(4)):
                    tokens = rng.randint(1, 100)
                    matched = rng.randrange(tokens)
                    worker.add(client, tokens, rng.randint(1, 30), matched=matched)
                for call_id in rng.sample(sorted(worker.waiting), len(worker.waiting) // 4):
                    worker.cache.change(call_id, rng.randrange(100))
                worker.step()
            orders.append(worker.order)
        assert len(orders[0]) > 40
        assert orders[0] == orders[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1.0, 300.0, 5000.0]))
def test_everything_is_served_in_the_end(seed, quantum):
    rng = random.Random(seed)
    engine = Engine(DlpmOptions(quantum=quantum), 1500)
    backlog(engine, rng, ["a", "b", "c"], 10, 600, 30)
    for _ in range(3000):
        engine.step()
        if not len(engine.scheduler) and not engine.running:
            break
    assert len(engine.order) == 30
    assert engine.held == 0


def test_a_heavy_client_does_not_delay_a_light_one():
    """The flood of one client; the other asks now and then: served at once, whatever the queue."""
    engine = Engine(DlpmOptions(quantum=200), 1000)
    for _ in range(500):
        engine.add("flood", 100, 20)
    for _ in range(50):
        engine.step()
    light = engine.add("light", 100, 20)
    waited = 0
    while light not in engine.order and waited < 200:
        engine.step()
        waited += 1
    assert waited <= 25, "one turn of the batch"


def test_a_small_quantum_takes_turns_and_a_large_one_follows_the_prefix():
    """Q -> 0 is VTC with the extend cost; Q -> inf is longest prefix match."""
    for quantum, expected_switches in ((1.0, 19), (1e9, 1)):
        engine = Engine(DlpmOptions(quantum=quantum), 120)
        for _ in range(10):
            engine.add("long", 100, 1, matched=90)
            engine.add("short", 10, 1, matched=0)
        for _ in range(200):
            engine.step()
        clients = [call_id.split("-")[0] for call_id in engine.order]
        switches = sum(a != b for a, b in itertools.pairwise(clients))
        if quantum == 1.0:
            assert switches >= 10, clients
        else:
            assert switches == expected_switches, clients
            assert clients[0] == "long"


def test_refill_when_stuck_is_work_conserving_and_the_paper_is_not():
    """A client in credit whose call does not fit, another in debt whose call would fit."""
    idle = {}
    for stuck in (True, False):
        engine = Engine(DlpmOptions(quantum=100, refill_when_stuck=stuck, max_bypass=0), 1000)
        engine.add("debt", 400, 100)  # long in debt
        engine.add("debt", 200, 150)
        for _ in range(3):
            engine.step()
        engine.add("big", 600, 300)
        for _ in range(5):
            engine.add("debt", 200, 100)
        steps_idle = 0
        for _ in range(600):
            fits = any(
                engine.held + call.prompt_tokens + call.max_output_tokens <= engine.capacity
                for call in engine.waiting.values()
            )
            admitted = engine.step()
            steps_idle += bool(fits and not admitted)
        idle[stuck] = steps_idle
    assert idle[True] == 0
    assert idle[False] > 0


def test_a_preempted_call_pays_for_its_prompt_once():
    engine = Engine(DlpmOptions(quantum=100), 1000)
    call_id = engine.add("a", 50, 5)
    engine.step()
    before = engine.scheduler.deficit("a")
    engine.scheduler.requeue(call_id)
    call, need, _ = engine.running.pop(call_id)
    engine.held -= need
    engine.waiting[call_id] = call
    engine.step()
    assert engine.scheduler.deficit("a") == before - 2


def test_a_call_that_never_fits_beside_small_ones_gets_its_turn():
    """max_bypass: after 16 others went first, the walk stops at it until it fits."""
    for limit, served in ((16, True), (0, False)):
        engine = Engine(DlpmOptions(quantum=1e6, max_bypass=limit), 1000)
        for _ in range(4):
            engine.add("small", 100, 100, matched=50)
        engine.step()
        big = engine.add("big", 900, 50)
        for step in range(600):
            if step % 20 == 0:
                engine.add("small", 100, 100, matched=50)
            engine.step()
        assert (big in engine.order) is served


def test_weights_divide_the_service():
    engine = Engine(DlpmOptions(quantum=50), 300)
    for _ in range(200):
        engine.add("double", 20, 10, weight=2.0)
        engine.add("single", 20, 10, weight=1.0)
    for _ in range(300):
        engine.step()
    assert engine.service["double"] / engine.service["single"] == pytest.approx(2.0, rel=0.1)


def test_idle_clients_in_credit_are_forgotten():
    engine = Engine(DlpmOptions(quantum=1e6), 10_000)
    for number in range(50):
        engine.add(f"c{number}", 10, 1)
    for _ in range(5):
        engine.step()
    assert not engine.running
    assert len(engine.scheduler._order) == 0


def test_bad_input_is_refused():
    scheduler = Dlpm()
    scheduler.add(LocalCall("x", "c", 1, 1))
    with pytest.raises(ValueError, match="already scheduled"):
        scheduler.add(LocalCall("x", "c", 1, 1))
    with pytest.raises(ValueError, match="weight is 0"):
        scheduler.add(LocalCall("y", "c", 1, 1, weight=0))
    with pytest.raises(KeyError):
        scheduler.finish("nobody")
    with pytest.raises(ValueError, match="quantum is 0"):
        DlpmOptions(quantum=0)
