"""D2LPM over DLPM workers keeps Theorems 5.1 and 5.2 under their premise.

The proofs add up the bound of DLPM over the workers, so they need clients that are backlogged *at
every worker*. The tests create and check that.
"""

import itertools

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS

WE, WQ = 1.0, 2.0
KV = 600


class Measured:
    """A cluster with closed-loop clients, and the service of each, by the extend cost.

    ``backlogged[user]`` is true if the user had a call waiting at every worker since the last
    sample; ``samples`` are ``(served, backlogged)`` after every step of a worker.
    """

    def __init__(self, system, makers, *, workers, outstanding, top_up=False):
        self.cluster = VirtualCluster(system, workers=workers, kv_tokens=KV)
        self.makers = makers
        self.top_up = top_up
        """Send one more call whenever a client has none at a worker."""
        self.numbers = itertools.count()
        self.served = dict.fromkeys(makers, 0.0)
        self.samples = []
        self.longest_prompt = 0
        self.cluster.on_end = self._on_end
        self.closed_loop = set(outstanding)
        self._count_service()
        for user, calls in outstanding.items():
            self.burst(0.0, user, calls)

    def _on_end(self, call, outcome):
        if call.user in self.closed_loop:
            self.burst(self.cluster.now_s, call.user, 1)

    def burst(self, time_s, user, calls):
        for _ in range(calls):
            number = next(self.numbers)
            tokens, output = self.makers[user](number)
            self.longest_prompt = max(self.longest_prompt, len(tokens))
            call = make_call(f"{number:06d}", user=user, tokens=tokens, output=output)
            self.cluster.at(time_s, call)
        self.cluster.arrivals.sort(key=lambda arrival: arrival[:2])

    def _count_service(self):
        decoded = {}
        event = self.cluster.event

        def counting(happened):
            if isinstance(happened, ev.CallStarted):
                call = self.cluster.calls[happened.call_id]
                self.served[call.user] += WE * (call.prompt_tokens - happened.cached_tokens)
            elif isinstance(happened, ev.TokensDecoded):
                for call_id, total in happened.totals:
                    user = self.cluster.calls[call_id].user
                    self.served[user] += WQ * (total - decoded.get(call_id, 0))
                    decoded[call_id] = total
                self._sample()
            event(happened)

        self.cluster.event = counting

    def _sample(self):
        everywhere = [
            {call.user for call in worker.waiting.values()}
            for worker in self.cluster.workers.values()
        ]
        backlogged = {user for user in self.makers if all(user in at for at in everywhere)}
        self.samples.append((dict(self.served), backlogged))
        if self.top_up:
            for user in sorted(self.closed_loop - backlogged):
                self.burst(self.cluster.now_s, user, 1)

    def run(self, until_s):
        self.cluster.run(until_s)
        return self

    def bound(self, quantum_u):
        """Return 2 |W| (U + Q^u), U = we * L_input + wq * M, M the tokens that fit a worker."""
        u = WE * self.longest_prompt + WQ * KV
        return 2 * len(self.cluster.workers) * (u + quantum_u)

    def widest(self, first, second, both=True):
        """Return the largest ``|W_f - W_g|`` while both are backlogged at every worker.

        Without ``both`` the largest ``W_g - W_f`` while the first one is. Also return the service of
        the first in the longest of them.
        """
        widest = longest = 0.0
        low = high = start = None
        needed = {first, second} if both else {first}
        for served, backlogged in self.samples:
            if not needed <= backlogged:
                low = None
                continue
            ahead = served[second] - served[first]
            if low is None:
                low = high = ahead
                start = served[first]
            widest = max(widest, ahead - low, (high - ahead) if both else 0.0)
            low, high = min(low, ahead), max(high, ahead)
            longest = max(longest, served[first] - start)
        return widest, longest


def alone(length, output):
    """Return prompts that share nothing."""
    return lambda number: (prompt((10_000 + number, length)), output)


def sharing(seed, length, output):
    """Return prompts that are one document and a few distinct tokens."""
    return lambda number: (prompt((seed, length), (10_000 + number, 16)), output)


def mixed(seed):
    """Return short and long prompts in turn, every third with a shared prefix."""

    def make(number):
        if number % 3:
            return prompt((10_000 + number, 20 + 30 * (number % 4))), 5 + 10 * (number % 3)
        return prompt((seed, 96), (10_000 + number, 16)), 12

    return make


MIXES = {
    "lengths": {"f": alone(120, 4), "g": alone(16, 30)},
    "prefixes": {"f": sharing(1, 96, 10), "g": alone(60, 10)},
    "mixed": {"f": mixed(1), "g": mixed(2), "h": alone(100, 25)},
}


def d2lpm(quantum_u, quantum_w):
    """Return the paper's scheme, with its own refill rule."""
    return SYSTEMS["d2lpm"].with_options(
        {
            "local.quantum": quantum_u,
            "local.refill_when_stuck": False,
            "local.max_bypass": 0,
            "router.quantum": quantum_w,
        }
    )


def everywhere(system, mix, workers):
    """Return clients with calls at every worker, one of them with many more."""
    makers = MIXES[mix]
    outstanding = dict(zip(makers, (60, 25, 25), strict=False))
    return Measured(system, makers, workers=workers, outstanding=outstanding, top_up=True)


@pytest.mark.parametrize(
    ("workers", "quantum_u", "mix"),
    [
        (2, 100.0, "mixed"),
        *(pytest.param(2, 100.0, mix, marks=pytest.mark.deep) for mix in ("lengths", "prefixes")),
        *(pytest.param(3, 800.0, mix, marks=pytest.mark.deep) for mix in MIXES),
    ],
)
def test_clients_backlogged_at_every_worker_keep_the_bound(workers, quantum_u, mix):
    """Theorem 5.1."""
    measured = everywhere(d2lpm(quantum_u, 300.0), mix, workers).run(40.0)
    bound = measured.bound(quantum_u)
    for first, second in itertools.combinations(measured.makers, 2):
        widest, longest = measured.widest(first, second)
        assert longest > bound, "the premise holds long enough for the bound to mean something"
        assert widest <= bound


def with_bursts(system):
    """f is backlogged everywhere; g sends bursts of 150 calls at times."""
    makers = {"f": alone(60, 10), "g": alone(40, 20)}
    measured = Measured(system, makers, workers=2, outstanding={"f": 20}, top_up=True)
    for time_s in (3.0, 20.0, 23.0, 40.0):
        measured.burst(time_s, "g", 150)
    return measured.run(60.0)


@pytest.mark.deep
def test_a_client_backlogged_everywhere_against_an_intermittent_one():
    """Theorem 5.2 bounds only the advantage of the other client, not that of the backlogged one."""
    measured = with_bursts(d2lpm(400.0, 300.0))
    ahead, longest = measured.widest("f", "g", both=False)
    assert longest > measured.bound(400.0)
    assert 0 < ahead <= measured.bound(400.0)
    assert with_bursts(SYSTEMS["fcfs"]).widest("f", "g", both=False)[0] > measured.bound(400.0)


SHARING_AND_NOT = {"f": sharing(1, 96, 20), "g": alone(100, 20)}


def stuck_to_its_prefix(quantum_w, until_s):
    """f shares one prefix, g none; return g's service less f's, the bound, and f's workers."""
    makers, outstanding = SHARING_AND_NOT, {"f": 40, "g": 40}
    measured = Measured(d2lpm(400.0, quantum_w), makers, workers=3, outstanding=outstanding)
    measured.run(until_s)
    cluster = measured.cluster
    assert all(
        any(
            call.user == user
            for worker in cluster.workers.values()
            for call in worker.waiting.values()
        )
        for user in makers
    ), "both wait somewhere"
    at = {
        cluster.admitted[call.call_id][-1][1] for call in cluster.calls.values() if call.user == "f"
    }
    return measured.served["g"] - measured.served["f"], measured.bound(400.0), at


def test_a_small_quantum_spreads_the_client_and_restores_the_bound():
    ahead, bound, at = stuck_to_its_prefix(300.0, 40.0)
    assert len(at) == 3
    assert abs(ahead) <= bound
