"""Random traffic on a small pool is scheduled like a naive Algorithm 1 with equal hits and fits.

At each offer, the naive walk matches every waiting call again by vLLM's own lookup, sorts, and
refills literally. Rejected offers are compared with vLLM's own count of blocks, and so are steps in
which the plug-in walks over no call because it knows that nothing fits.
"""

import random

from both_dlpm import BothDlpm
from vllm_world import BOTH, World

from fairserve.engine.vllm.waiting_queue import WaitingQueue
from fairserve.scheduling.local.dlpm_options import DlpmOptions

REQUESTS = 300
LONGEST_PROMPT, LONGEST_OUTPUT = 130, 24
CLIENTS = ["t/flood", "t/light", "u/some", "v"]


class RandomWorld(World):
    """Three hundred requests of four clients, one of which floods; shared prefixes; aborts."""

    def __init__(self, kind, seed):
        rng = self.rng = random.Random(seed)
        super().__init__(
            kind,
            blocks=rng.choice([45, 60, 90]),
            max_num_seqs=rng.choice([4, 8, 12]),
            max_num_batched_tokens=rng.choice([24, 64, 200]),
            watermark=0.1 * (seed % 2),
            environment={"FAIRSERVE_VICTIM": rng.choice(["fair", "fair", "latest"])},
        )
        self.options = DlpmOptions(
            quantum=rng.choice([1.0, 60.0, 500.0]),
            refill_when_stuck=rng.random() < 0.7,
            stuck_advance=rng.choice([0.0, 60.0, 500.0]),
            max_bypass=rng.choice([0, 8, 64]),
        )
        self.both = BothDlpm(self.options, self.cached_tokens, self.check_refusal)
        self.queue.local = self.both
        self.charged = {}
        """Output tokens by request."""
        self.both.decoded, self.both.accept = self.decoded, self.accept
        self.queue.end_step = self.end_step
        self.most_running = 0
        self.unlooked = self.passes_before = 0
        """Number of steps in which no pass began, since nothing would fit."""

    def cached_tokens(self, call):
        """Return the tokens that vLLM will find cached, computed without any memo."""
        request = self.requests[call.call_id]
        coordinator = self.scheduler.kv_cache_manager.coordinator
        return coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]

    def fits(self, request):
        """Return whether a request fits, by the count of ``allocate_slots`` written out."""
        manager = self.scheduler.kv_cache_manager
        found, _, _ = manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        unused = sum(block.ref_cnt == 0 for block in found[0])
        needed = -(-request.num_tokens // 4) - len(found[0]) + unused
        spare = manager.watermark_blocks if self.scheduler.running else 0
        return needed + spare <= self.pool.get_num_free_blocks()

    def check_refusal(self, call):
        assert not self.fits(self.requests[call.call_id])

    def decoded(self, call_id, tokens):
        self.charged[call_id] = self.charged.get(call_id, 0) + tokens
        BothDlpm.decoded(self.both, call_id, tokens)

    def accept(self, cached_tokens):
        request = self.requests[self.both.offered.call_id]
        assert cached_tokens == request.num_computed_tokens < request.num_tokens
        assert cached_tokens % 4 == 0
        BothDlpm.accept(self.both, cached_tokens)

    def end_step(self):
        queue = self.queue
        assert queue._offered is None or not queue._peeked, "what was offered fitted"
        if queue._begun and self.both.passes == self.passes_before:
            self.unlooked += 1
            for request in queue:
                assert request.request_id in queue._apart or not self.fits(request)
        self.passes_before = self.both.passes
        WaitingQueue.end_step(queue)

    def arrive(self):
        rng, number = self.rng, len(self.requests)
        client = rng.choice(["t/flood"] * 5 + CLIENTS)
        prefix = range(10_000 * rng.randrange(3), 10_000 * rng.randrange(1, 4))
        prompt = list(prefix[: rng.choice([0, 20, 60, 90])])
        prompt += rng.choices(range(500), k=rng.randint(1, LONGEST_PROMPT - len(prompt)))
        if rng.random() < 0.3 and self.requests:  # the next turn of an earlier request
            before = self.requests[rng.choice(sorted(self.requests))]
            prompt = [*before.all_token_ids, *rng.choices(range(500), k=5)][:LONGEST_PROMPT]
        self.add(f"{number:03}", prompt, rng.randint(1, LONGEST_OUTPUT), client)

    def step(self):
        entered = super().step()
        self.both.close()
        assert self.queue._offered is None
        self.most_running = max(self.most_running, len(self.scheduler.running))
        u = LONGEST_PROMPT + 2 * self.most_running * LONGEST_OUTPUT
        u += self.options.stuck_advance * self.options.refill_when_stuck
        for client in [*CLIENTS, "t", "u"]:
            assert -u <= self.both.deficit(client) <= self.options.quantum
        return entered

    def run(self):
        rng = self.rng
        while len(self.requests) < REQUESTS:
            for _ in range(rng.choice([0, 0, 1, 3])):
                self.arrive()
            self.step()
            alive = sorted(set(self.requests) - self.ended)
            if alive and rng.random() < 0.08:
                self.abort(rng.choice(alive))
            if rng.random() < 0.01:
                self.scheduler.reset_prefix_cache(reset_running_requests=rng.random() < 0.3)
        self.drain()


@BOTH
def test_order_and_charges_equal_algorithm_1(kind):
    preempted = unlooked = 0
    for seed in range(3):
        world = RandomWorld(kind, seed)
        world.run()
        assert world.both.offers > REQUESTS
        preempted += sum(request.num_preemptions for request in world.requests.values())
        unlooked += world.unlooked
        for request_id in world.requests:
            generated = len(world.generated.get(request_id, []))
            assert world.charged.get(request_id, 0) == generated, "each token once"
    assert preempted > 50
    assert unlooked > 50
