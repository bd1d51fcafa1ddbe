"""Adversarial arrivals on one worker, with the quantities that VTC's theorems bound at every event.

``U = max(wp * longest prompt, wq * capacity)``, which ``bound`` returns.
"""

import random

from hypothesis import strategies as st
from one_worker import OneWorker

EPS = 1e-6


class Watch:
    """Measures what the theorems bound, at every event of one worker."""

    def __init__(self, worker):
        self.worker = worker
        worker.observe = self.event
        self.spread = 0.0
        """Largest difference of the counters of queued clients (Lemma 4.3)."""
        self.backlogged_difference = 0.0
        """Largest |Wf - Wg| over an interval in which both are backlogged (Theorem 4.4)."""
        self.lag = 0.0
        """Largest Wg - Wf over an interval in which f is backlogged (Theorem 4.9)."""
        self.shortfall = 0.0
        """Largest T / n - Wf since f became backlogged (Theorem 4.13)."""
        self.outstanding = 0.0
        """Largest amount that any client had reserved for predictions at one time."""
        self._both, self._one = {}, {}
        self._at_start = {}

    def event(self):
        service, queued = self.worker.service, self.worker.backlogged()
        scheduler = self.worker.scheduler
        counters = [scheduler.counter((client,)) for client in queued]
        reserved = [scheduler._counters.outstanding((client,)) for client in service]
        self.outstanding = max(self.outstanding, *reserved)
        if counters:
            self.spread = max(self.spread, max(counters) - min(counters))
        self._at_start = {f: at for f, at in self._at_start.items() if f in queued}
        self._both = {
            pair: low_high for pair, low_high in self._both.items() if set(pair) <= queued
        }
        self._one = {pair: low for pair, low in self._one.items() if pair[0] in queued}
        for f in queued:
            start = self._at_start.setdefault(f, (dict(service), {f}))
            start[1].update(queued, self.worker_clients())
            total = sum(service.values()) - sum(start[0].values())
            own = service[f] - start[0][f]
            self.shortfall = max(self.shortfall, total / len(start[1]) - own)
            for g in service:
                difference = service[g] - service[f]
                low = self._one[f, g] = min(self._one.get((f, g), difference), difference)
                self.lag = max(self.lag, difference - low)
                if g in queued:
                    low, high = self._both.get((f, g), (difference, difference))
                    self._both[f, g] = min(low, difference), max(high, difference)
                    low, high = self._both[f, g]
                    self.backlogged_difference = max(self.backlogged_difference, high - low)

    def worker_clients(self):
        return {call.client_id for call in self.worker.running.values()}


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "clients": st.integers(2, 5),
        "wq": st.sampled_from([1.0, 2.0, 4.0]),
        "longest_prompt": st.sampled_from([5, 100, 500]),
        "longest_output": st.sampled_from([2, 20, 100]),
        "capacity": st.sampled_from([600, 1500]),
    }
)


def adversarial(case, scheduler, *, steps=120, reserve=True, max_batch=10**9):
    """Make bursts, intermittent clients, and lengths at both extremes."""
    rng = random.Random(case["seed"])
    worker = OneWorker(
        scheduler, case["capacity"], wq=case["wq"], reserve=reserve, max_batch=max_batch
    )
    watch = Watch(worker)
    for _ in range(steps):
        for client in range(case["clients"]):
            if rng.random() < (0.5 if client == 0 else 0.1):
                for _ in range(rng.choice([1, 1, 8])):
                    prompt = rng.choice(
                        [1, case["longest_prompt"], rng.randint(1, case["longest_prompt"])]
                    )
                    longest = rng.choice([1, case["longest_output"]])
                    worker.add(f"k{client}", prompt, rng.randint(1, longest), longest=longest)
        worker.step()
    return worker, watch


def bound(case):
    return max(case["longest_prompt"], case["wq"] * case["capacity"])
