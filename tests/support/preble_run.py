"""A Preble router with its locality and without workers, for tests that name their calls."""

from virtual_cluster import make_call, prompt

from fairserve.benchmarks.policies.preble import Preble
from fairserve.benchmarks.policies.preble_options import PrebleOptions
from fairserve.scheduling.locality.locality import Locality

WORKERS = ["w0", "w1", "w2"]
PLAIN = {  # a millisecond per own token, and nothing else
    "prefill_s": 0.0,
    "prefill_token_s": 0.001,
    "prefill_context_s": 0.0,
    "prefill_product_s": 0.0,
    "token_s": 0.1,
    "output_tokens": 40.0,
    "eviction": False,
    "rebalance_ratio": None,
}


class Run:
    """A router with its locality, and calls by name."""

    def __init__(self, workers=WORKERS, capacity=100_000, **options):
        self.locality = Locality(seed=1)
        self.router = Preble(self.locality, PrebleOptions(**{**PLAIN, **options}))
        self.calls, self.at = {}, {}
        for worker in workers:
            self.locality.add_worker(worker, capacity)
            self.router.add_worker(worker)

    def call(self, name, *parts):
        self.calls[name] = make_call(name, tokens=prompt(*parts))
        self.locality.register(self.calls[name])
        return self.calls[name]

    def choose(self, name, *parts, open_workers=WORKERS):
        return self.router.select(self.call(name, *parts), open_workers)

    def place(self, name, *parts, on=None):
        call = self.call(name, *parts)
        worker = on or self.router.select(call, WORKERS)
        self.router.dispatched(call, worker, 1.0)
        self.locality.placed(call, worker)
        self.at[name] = worker
        return worker

    def finish(self, name, output=0):
        self.router.finished(self.calls.pop(name), self.at.pop(name), 1.0, output)
        self.locality.forget(name)

    def costs(self):
        return [round(self.router.cost_ns(worker) / 1e9, 6) for worker in WORKERS]
