"""An engine in virtual time: continuous batching, a KV pool with a prefix cache, a local scheduler.

The local scheduler is the real one; only the forward pass is replaced by the time of a cost model.
A worker does one thing at a time: it prefills admitted prompts, or decodes one token for all
running sequences. Prompts come first, as in engines without mixed passes, several in one pass and
long ones in chunks. Decode steps between which nothing can be admitted are one event (*fused*),
whose time has a closed form.

The driver calls :meth:`SimulatedWorker.advance` at :attr:`next_s` and is notified through a
:class:`Listener`, which may add calls in its methods. A prompt is in the prefix cache once it is
computed. Outputs are not cached, since traces do not contain them, and nothing is preempted; the loop
``paged`` does both.

Cost: O(log batch) per call and fused run of steps, O(batch) per step with a queue.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Protocol

from fairserve.engine.simulated.cost_model import CostModel, pairs
from fairserve.engine.simulated.kv_pool import KvPool, Pool
from fairserve.engine.simulated.room import FutureRoom
from fairserve.scheduling.base import LocalCall, LocalScheduler
from fairserve.scheduling.locality.block_keys import BlockKeys

_ARTIFACT_STEPS = 10
"""Number of decode steps after which the VTC paper's code tries to admit."""


class Listener(Protocol):
    """Listener to a worker's calls, notified in the order of time."""

    def started(self, call_id: str, cached_tokens: int, now_s: float) -> None:
        """Handle that a call leaves the worker's queue."""
        ...

    def first_token(self, call_id: str, now_s: float) -> None:
        """Handle the end of a call's prefill."""
        ...

    def ended(self, call_id: str, output_tokens: int, now_s: float) -> None:
        """Handle the end of a call; ``output_tokens`` are over all samples."""
        ...


@dataclass(slots=True, eq=False)
class BatchedCall:
    """A call in the batch, whose samples are generated in parallel."""

    call: LocalCall
    samples: int
    output_tokens: int
    """Output tokens of each sample."""
    cached_tokens: int
    """Prompt tokens that were in the prefix cache on admission."""
    computed: int
    """Prompt tokens that are computed at the end of the current pass."""
    decoding: bool = False
    """True once its prompt is computed and its first tokens are generated."""
    last_step: int = 0
    """Number of the decode step with which it ends."""
    first_step: int = 0
    """Number of decode steps before its first; after a preemption, as if there had been none."""
    restarted: bool = False
    """True if it was preempted and has entered again."""
    generated: int = 0
    """Output tokens of each sample at its last preemption."""

    @property
    def prefill_tokens(self) -> int:
        """Return the tokens that must be computed before it decodes."""
        return self.call.prompt_tokens + self.generated * self.samples


class SimulatedWorker:
    """A simulated engine. Times are virtual seconds and never decrease."""

    def __init__(
        self,
        costs: CostModel,
        scheduler: LocalScheduler,
        block_tokens: int,
        listener: Listener,
    ) -> None:
        self._costs, self._scheduler, self._listener = costs, scheduler, listener
        self._artifact = costs.loop == "vtc-artifact"
        self._pool = self._make_pool(block_tokens)
        self._sizes: dict[str, tuple[int, int]] = {}
        """Samples and output tokens of waiting calls."""
        self._running: dict[str, BatchedCall] = {}
        self._prefilling: list[BatchedCall] = []
        """Calls in the batch with an incomplete prompt."""
        self._ends: list[tuple[int, int, BatchedCall]] = []
        self._entered = 0
        self._batch_samples = 0
        """Samples of all running calls."""
        self._sequences = 0
        """Number of decoding sequences."""
        self._held_tokens = 0
        """Tokens of the decoding sequences, shared prompts counted once per call."""
        self._step = 0
        """Number of decode steps so far."""
        self._charged_step = 0
        """Number of the decode step up to which the scheduler was charged."""
        self._since_admission = 0
        """Number of decode steps since the last admission."""
        self._pass: list[BatchedCall] = []
        """Sequences of the running prefill pass."""
        self._budget = 0
        """Tokens that the pass can still compute."""
        self._pass_tokens = 0
        self._pass_pairs = 0.0
        self._began_s = 0.0
        self._steps = 0
        """Number of fused decode steps in progress."""
        self.next_s = math.inf
        """Time at which :meth:`advance` must be called; infinite while the worker is idle."""
        self.busy_s = 0.0
        """Seconds of passes so far."""

    def _make_pool(self, block_tokens: int) -> Pool:
        capacity = self._costs.kv_capacity_tokens
        room = FutureRoom(capacity) if self._artifact else None
        return KvPool(capacity, block_tokens, room)

    # --- interface --------------------------------------------------------------------------------

    @property
    def kv_capacity_tokens(self) -> int:
        """Return the capacity of the pool in tokens."""
        return self._costs.kv_capacity_tokens

    @property
    def waiting(self) -> int:
        """Return the number of waiting calls."""
        return len(self._scheduler)

    @property
    def running(self) -> int:
        """Return the number of calls in the batch."""
        return len(self._running)

    def add(
        self,
        call: LocalCall,
        keys: BlockKeys,
        *,
        output_keys: BlockKeys = (),
        samples: int,
        output_tokens: int,
        now_s: float,
    ) -> None:
        """Add a call with the keys of its prompt's full blocks and the output tokens of each sample.

        ``output_keys`` are those of the following full blocks, as far as they are known.
        """
        self._sizes[call.call_id] = (samples, output_tokens)
        self._pool.register(call, samples, keys, output_keys)
        if self._steps > 1 and len(self._scheduler):
            # If calls wait, its client is compared with the service of others so far.
            self._charge_decoded(self._steps_by(now_s))
        self._scheduler.add(call)
        if not self._steps and not self._pass:
            self.next_s = min(self.next_s, now_s)
        elif self._steps > 1:
            self._cut(now_s)

    def cancel(self, call_id: str, now_s: float) -> int:
        """Drop a call, waiting or running; return the tokens that it has generated.

        A running call leaves at the end of the current pass.
        """
        sequence = self._running.get(call_id)
        if sequence is None:
            self._scheduler.finish(call_id)
            self._pool.forget(call_id)
            del self._sizes[call_id]
            return 0
        if self._steps > 1:
            self._cut(now_s)
        generated = self._generated(sequence, self._steps_by(now_s))
        sequence.last_step = -1  # it is removed from the heap when it reaches the top
        self._leave(sequence)
        return generated

    def progress(self, now_s: float) -> list[tuple[str, int]]:
        """Return the output tokens so far of each call that has some, over all its samples."""
        step = self._steps_by(now_s)
        return [
            (call_id, generated)
            for call_id, sequence in self._running.items()
            if (generated := self._generated(sequence, step))
        ]

    def _steps_by(self, now_s: float) -> int:
        """Return the number of decode steps that are complete at a time within the current pass."""
        return self._step + (self._complete(now_s) if self._steps else 0)

    def _generated(self, sequence: BatchedCall, step: int) -> int:
        if not sequence.decoding:
            return sequence.generated * sequence.samples
        return (1 + min(step, sequence.last_step) - sequence.first_step) * sequence.samples

    # --- time -------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Complete the pass that ends now, and begin the next one."""
        if self._pass:
            self._end_prefill(now_s)
        elif self._steps:
            self._end_decode(now_s)
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._budget = self._costs.max_prefill_tokens
        self._pass_tokens, self._pass_pairs = 0, 0.0
        for sequence in self._prefilling:
            self._compute(sequence)
        if len(self._scheduler) and self._may_admit():
            self._admit(now_s)
        if self._pass:
            self.next_s = now_s + self._costs.prefill_s(self._pass_tokens, self._pass_pairs)
        elif self._running:
            self._steps = self._fusable()
            self.next_s = now_s + self._decode_s(self._steps)
        else:
            self.next_s = math.inf

    # --- decoding ---------------------------------------------------------------------------------

    def _fusable(self) -> int:
        """Return the number of decode steps until a call ends or may be admitted."""
        while self._ends[0][2].last_step < 0:
            heapq.heappop(self._ends)  # cancelled
        steps = self._ends[0][0] - self._step
        if len(self._scheduler):
            wait = _ARTIFACT_STEPS - self._since_admission if self._artifact else 1
            steps = min(steps, max(1, wait))
        return steps

    def _decode_s(self, steps: int) -> float:
        return self._costs.decode_s(self._sequences, self._held_tokens, steps)

    def _complete(self, now_s: float) -> int:
        """Return the number of fused steps that are complete at ``now_s``."""
        low, high, passed_s = 0, self._steps, now_s - self._began_s
        while low < high:
            middle = (low + high + 1) // 2
            if self._decode_s(middle) <= passed_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _cut(self, now_s: float) -> None:
        """End the fused steps with the running one because of a change."""
        begun = min(self._steps, self._complete(now_s) + 1)
        if self._artifact:
            begun = max(begun, min(self._steps, _ARTIFACT_STEPS - self._since_admission))
        self._steps = begun
        self.next_s = max(now_s, self._began_s + self._decode_s(begun))

    def _end_decode(self, now_s: float) -> None:
        self.busy_s += now_s - self._began_s
        self._step += self._steps
        self._since_admission += self._steps
        self._held_tokens += self._steps * self._sequences
        self._steps = 0
        if len(self._scheduler):
            self._charge_decoded(self._step)
        while self._ends and self._ends[0][0] <= self._step:
            _, _, sequence = heapq.heappop(self._ends)
            if sequence.last_step >= 0:
                self._end(sequence, now_s)

    def _charge_decoded(self, step: int) -> None:
        """Charge the scheduler for the tokens decoded up to this step since the last charge."""
        steps = step - self._charged_step
        if steps:
            self._charged_step = step
            decoded = self._scheduler.decoded
            for call_id, sequence in self._running.items():
                if sequence.decoding:
                    decoded(call_id, steps * sequence.samples)

    def _end(self, sequence: BatchedCall, now_s: float) -> None:
        self._charge_decoded(self._step)
        self._leave(sequence)
        total = sequence.output_tokens * sequence.samples
        self._listener.ended(sequence.call.call_id, total, now_s)

    def _leave(self, sequence: BatchedCall) -> None:
        """Remove a sequence from the batch for good and free its tokens."""
        self._remove(sequence)
        self._scheduler.finish(sequence.call.call_id)
        self._pool.forget(sequence.call.call_id)

    def _remove(self, sequence: BatchedCall) -> None:
        """Remove a sequence from the batch."""
        call = sequence.call
        del self._running[call.call_id]
        self._batch_samples -= sequence.samples
        if not sequence.decoding:
            self._prefilling.remove(sequence)
        else:
            generated = (1 + self._step - sequence.first_step) * sequence.samples
            self._sequences -= sequence.samples
            self._held_tokens -= call.prompt_tokens + generated

    # --- admission --------------------------------------------------------------------------------

    def _may_admit(self) -> bool:
        if self._artifact:
            return not self._running or self._since_admission >= _ARTIFACT_STEPS
        return True

    def _admit(self, now_s: float) -> None:
        """Pass over the queue until no started call triggers new arrivals."""
        while True:
            started = self._admit_pass()
            if not started:
                return
            self._since_admission = 0
            waiting = len(self._scheduler)
            for sequence in started:
                if sequence.restarted:
                    continue
                self._listener.started(sequence.call.call_id, sequence.cached_tokens, now_s)
            if len(self._scheduler) == waiting:
                return

    def _admit_pass(self) -> list[BatchedCall]:
        scheduler = self._scheduler
        started: list[BatchedCall] = []
        self._charge_decoded(self._step)
        scheduler.start_pass(self._pool.cache)
        while self._budget > 0 and (call := scheduler.peek()) is not None:
            sequence = self._try(call)
            if sequence is None:
                scheduler.skip()
            else:
                scheduler.accept(sequence.cached_tokens)
                started.append(sequence)
                self._prefilling.append(sequence)
                self._compute(sequence)
        return started

    def _try(self, call: LocalCall) -> BatchedCall | None:
        """Add a call to the batch if it fits."""
        samples, output_tokens = self._sizes[call.call_id]
        if self._batch_samples and self._batch_samples + samples > self._costs.max_running:
            return None
        if self._artifact and self._pass and call.prompt_tokens > self._budget:
            return None
        cached = self._pool.enter(call, samples, output_tokens, self._step)
        if cached is None:
            return None
        del self._sizes[call.call_id]
        self._batch_samples += samples
        sequence = BatchedCall(call, samples, output_tokens, cached, cached)
        self._running[call.call_id] = sequence
        return sequence

    # --- prefilling -------------------------------------------------------------------------------

    def _compute(self, sequence: BatchedCall) -> None:
        """Add the rest of a prompt to the pass, or as much as one pass may compute."""
        missing = sequence.prefill_tokens - sequence.computed
        tokens = missing if self._artifact else min(self._budget, missing)
        if tokens <= 0:
            return
        self._pass.append(sequence)
        self._budget -= tokens
        self._pass_tokens += tokens
        self._pass_pairs += pairs(sequence.computed, tokens)
        sequence.computed += tokens
        self._share(sequence)

    def _share(self, sequence: BatchedCall) -> None:
        """Share the blocks of a prompt from the start of the pass that computes them."""
        self._pool.computed(sequence.call.call_id, sequence.computed)

    def _end_prefill(self, now_s: float) -> None:
        self.busy_s += now_s - self._began_s
        computed, self._pass = self._pass, []
        self._charge_decoded(self._step)
        for sequence in computed:
            cancelled = self._running.get(sequence.call.call_id) is not sequence
            if not cancelled and sequence.computed >= sequence.prefill_tokens:
                self._prefilling.remove(sequence)
                self._enter_decoding(sequence, now_s)

    def _enter_decoding(self, sequence: BatchedCall, now_s: float) -> None:
        """Start to decode: the prompt's pass generated the first token of each sample."""
        call, samples = sequence.call, sequence.samples
        sequence.first_step = self._step - sequence.generated
        sequence.last_step = sequence.first_step + sequence.output_tokens - 1
        self._sequences += samples
        self._held_tokens += sequence.prefill_tokens + samples
        sequence.decoding = True
        self._scheduler.decoded(call.call_id, samples)
        if not sequence.generated:
            self._listener.first_token(call.call_id, now_s)
        if sequence.last_step == self._step:
            self._end(sequence, now_s)
        else:
            self._entered += 1
            heapq.heappush(self._ends, (sequence.last_step, self._entered, sequence))
