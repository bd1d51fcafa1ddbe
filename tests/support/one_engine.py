"""A simulated worker driven by hand, with the events that it sends."""

import math
from array import array

from hypothesis import strategies as st

from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay import WORKERS
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

BLOCK = 4


def costs(**changes):
    """Return a cost model: a prefill takes 10 s and 1 s a token, a step 1 s and 0.1 s a sequence."""
    values = {
        "kv_capacity_tokens": 100,
        "prefill_base_s": 10.0,
        "prefill_s_per_token": 1.0,
        "prefill_s_per_pair": 0.0,
        "decode_base_s": 1.0,
        "decode_s_per_sequence": 0.125,
        "decode_s_per_held_token": 0.0,
    }
    return CostModel("test", **{**values, **changes})


class OneEngine:
    """Records the events of its worker."""

    def __init__(self, model, scheduler="fcfs", **options):
        local = LOCAL_SCHEDULERS[scheduler](**options)
        self.worker = WORKERS[model.loop](model, local, BLOCK, self)
        self.log = []
        self.now_s = 0.0
        self.cached = {}

    def add(self, name, prompt, output, *, at_s=None, samples=1, blocks=(), after=(), client="c"):
        """Add a call; ``blocks`` and ``after`` are the keys of its prompt and of its output."""
        if at_s is not None:
            self.advance_to(at_s)
        call = LocalCall(name, client, prompt, output * samples, output_tokens=output * samples)
        keys = array("Q", blocks)
        self.worker.add(
            call,
            keys,
            output_keys=array("Q", after),
            samples=samples,
            output_tokens=output,
            now_s=self.now_s,
        )

    def advance_to(self, at_s):
        while self.worker.next_s <= at_s and self.worker.next_s < math.inf:
            assert self.worker.next_s >= self.now_s
            self.now_s = self.worker.next_s
            self.worker.advance(self.now_s)
        if at_s < math.inf:
            self.now_s = at_s

    def finish(self):
        self.advance_to(math.inf)
        return self.log

    def started(self, call_id, cached_tokens, now_s):
        self.cached[call_id] = cached_tokens
        self.log.append(("started", call_id, now_s))

    def first_token(self, call_id, now_s):
        self.log.append(("first", call_id, now_s))

    def ended(self, call_id, output_tokens, now_s):
        self.log.append(("ended", call_id, now_s, output_tokens))


calls = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 12),  # output
        st.integers(1, 2),  # samples
        st.integers(0, 5),  # shared blocks
        st.integers(0, 2),  # family
        st.floats(0, 30),  # pause
    ),
    max_size=25,
)


def replay(engine, arrivals, watch=lambda: None):
    """Run these calls to their ends, and return the log; ``watch`` is called after each change."""
    at_s = 0.0
    for number, (prompt, output, samples, shared, family, pause) in enumerate(arrivals):
        at_s += pause
        blocks = [100 * family + n for n in range(min(shared, prompt // BLOCK))]
        blocks += [10_000 * (number + 1) + n for n in range(prompt // BLOCK - len(blocks))]
        engine.advance_to(at_s)
        engine.add(f"{number}", prompt, output, samples=samples, blocks=blocks, client=str(family))
        watch()
    while engine.worker.next_s < math.inf:
        engine.advance_to(engine.worker.next_s)
        watch()
    return engine.log
