"""Test the theorems of the DLPM paper on one worker, on random backlogs, with outputs reserved."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_worker import FixedCache, OneWorker
from reserving_engine import Engine
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.lpm import Lpm, LpmOptions
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions
from fairserve.scheduling.registry import SYSTEMS


def waiting_clients(engine):
    return {call.client_id for call in engine.waiting.values()}


CAPACITY = 120
LONGEST_PROMPT = 40
LONGEST_OUTPUT = 16
U = LONGEST_PROMPT + 2 * CAPACITY
"""Upper bound ``we * Linput + wq * M`` with outputs reserved: a batch decodes at most M tokens."""

FLAT = ["a", "b", "c", "d"]
NESTED = ["x/u0", "y/u0", "y/u1", "y/u2", "z/u0", "z/u1"]
quanta = st.sampled_from([1.0, 40.0, 300.0])
advances = st.sampled_from([None, 20.0, 300.0])
"""Values of ``stuck_advance``, or the paper's rule."""


class Demand:
    """Clients that flood, that come and go, and that send single calls; with the service of each."""

    def __init__(self, seed, clients, quantum, advance=None, max_bypass=0):
        self.rng = random.Random(seed)
        options = DlpmOptions(
            quantum=quantum,
            refill_when_stuck=advance is not None,
            stuck_advance=advance or 0.0,
            max_bypass=max_bypass,
        )
        self.lowest, self.range = U + (advance or 0.0), U + quantum + (advance or 0.0)
        self.engine = Engine(options, CAPACITY)
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
        """Return the service of a client, or of all clients below an outer level."""
        return sum(
            service
            for client, service in self.engine.service.items()
            if client == account or client.startswith(account + "/")
        )

    def groups(self):
        """Return groups of siblings, level by level."""
        tenants = sorted({client.split("/")[0] for client in self.clients})
        below = [[c for c in self.clients if c.startswith(tenant + "/")] for tenant in tenants]
        return [group for group in [tenants, *below] if group]

    def backlogged(self, account):
        return any(
            c == account or c.startswith(account + "/") for c in waiting_clients(self.engine)
        )


@given(
    st.integers(0, 2**32),
    st.sampled_from([FLAT, NESTED]),
    quanta,
    advances,
    st.sampled_from([0, 16]),
)
def test_deficits_stay_between_what_runs_and_one_quantum(
    seed, clients, quantum, advance, max_bypass
):
    """Theorem A.1: -(U + D) <= q <= Q^u at every level, D = ``stuck_advance``; 0 is the paper's."""
    demand = Demand(seed, clients, quantum, advance, max_bypass)
    for _ in range(200):
        demand.step()
        for group in demand.groups():
            for account in group:
                assert -demand.lowest <= demand.engine.scheduler.deficit(account) <= quantum


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.integers(0, 2**32),
    st.sampled_from([FLAT, NESTED]),
    quanta,
    advances,
    st.sampled_from([0, 16]),
)
def test_service_of_siblings_is_bounded_in_any_interval(
    seed, clients, quantum, advance, max_bypass
):
    """Theorem 4.2: Wf >= Wg - 2 (U + Q^u + D) in every interval in which f is backlogged.

    In both directions it is Theorem 4.1; D = 0 is the paper's rule. With levels it holds among the
    siblings of each level: a tenant has one tenant's share however many users it has, and so have
    its users among themselves.
    """
    demand = Demand(seed, clients, quantum, advance, max_bypass)
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
                assert ahead - least[f, g] <= 2 * demand.range


@pytest.mark.parametrize("advance", [None, 0.0, 20.0, 300.0])
def test_a_client_whose_calls_do_not_fit_falls_behind_by_a_constant(advance):
    """In the worst case of an advance f's calls need most of the memory, and g has one that fits."""
    demand = Demand(0, ["f", "g"], 40.0, advance)
    engine, rng = demand.engine, demand.rng
    for _ in range(4000):
        for client, prompt_tokens, output in (("f", 40, 70), ("g", 10, rng.randint(1, 12))):
            while sum(call.client_id == client for call in engine.waiting.values()) < 12:
                engine.add(client, prompt_tokens, output)
        engine.step()
        assert engine.service["g"] - engine.service["f"] <= 2 * demand.range
    assert engine.service["f"] > 4 * demand.range


@given(st.integers(0, 2**32), st.sampled_from([FLAT, NESTED]), quanta, advances)
def test_latency_of_an_idle_client_is_bounded(seed, clients, quantum, advance):
    """Theorem A.2: a client's next call waits <= 2 (n - 1) (Q^u + U + D) / a if it has no other.

    A step decodes at least one token, so the capacity is ``wq`` a step. With levels, while the call
    of a user waits its tenant is backlogged: other tenants get 2 (U + Q^u + D) more than its other
    users.
    """
    demand = Demand(seed, clients, quantum, advance)
    client = clients[-1]
    demand.kinds[client] = "none"
    engine, tenant = demand.engine, client.split("/")[0]
    tenants, siblings = demand.groups()[0], [c for c in clients if c.startswith(tenant + "/")]
    own = 2 * demand.range * max(0, len(siblings) - 1)
    bound = own + (len(tenants) - 1) * (own + 2 * demand.range)
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


@pytest.mark.deep
def test_latency_on_several_workers_is_bounded():
    """Theorem A.4: behind D2LPM, too, a call of a client without any waits a bounded time.

    Its worker serves each of the other ``n - 1`` clients at most ``2 (U + Q^u)`` before it, so the
    paper's bound, which is larger by the number of workers, is never reached.
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


def test_a_quantum_near_zero_is_vtc_with_the_extend_cost(seed):
    """The schedules are equal if memory is equal for all calls and the match is irrelevant.

    One call a step: a walk that takes several continues, after a refill, behind the last one.
    """

    class Blind(FixedCache):
        def match(self, call):
            return 0, None, None

    for number in range(4):
        orders = []
        for scheduler in (
            Dlpm(DlpmOptions(quantum=2**-20, refill_when_stuck=False, max_bypass=0)),
            Vtc(VtcOptions(cost="extend")),
        ):
            rng, worker = random.Random(seed + number), OneWorker(scheduler, 10**9, max_batch=1)
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


def test_an_infinite_quantum_is_lpm(seed):
    """The schedules are equal for clients that have all been refilled once."""
    for number in range(4):
        orders = []
        for scheduler in (
            Dlpm(DlpmOptions(quantum=1e15, max_bypass=0)),
            Lpm(LpmOptions(when_full="skip")),
        ):
            rng, worker = random.Random(seed + number), OneWorker(scheduler, 300)
            for client in "abcd":
                worker.add(client, 400, 1)  # never fits: an idle client is evicted
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
