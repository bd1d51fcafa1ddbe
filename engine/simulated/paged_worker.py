"""The loop of vLLM's scheduler in virtual time: calls take blocks as they grow, and are preempted.

As in the loop ``mixed``, every pass decodes one token for all running sequences and computes chunks
of prompts in the rest of its budget. Departures of that loop, all as in vLLM 0.32 with its default
options (v1/core/sched/scheduler.py):

- A call enters if its prompt fits; no room is reserved for its output.
- If a running call needs a block and none is free, the last call of the batch is preempted, or
  itself if it is the last: its blocks are released, and it waits again, before the calls that
  arrived after it. When it enters again, it computes what is no longer cached of its prompt and its
  output. No call enters in a pass that preempted one.
- A prompt is shared from the pass that computes it, and an output, too (:class:`PagedPool`).

tests/vllm/engine/test_simulated_memory.py compares it with vLLM's scheduler, event by event. Weakness:
asynchronous scheduling, which decides one pass ahead of the outputs, is not simulated.

Cost: O(batch) per pass, O(1) per new block.
"""

from __future__ import annotations

from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.mixed_worker import MixedWorker
from fairserve.engine.simulated.paged_pool import PagedPool
from fairserve.engine.simulated.worker import BatchedCall, Listener, SimulatedWorker
from fairserve.scheduling.base import LocalCall, LocalScheduler


class PagedWorker(MixedWorker):
    """A worker for cost models with the loop ``paged``."""

    _pool: PagedPool

    def __init__(
        self,
        costs: CostModel,
        scheduler: LocalScheduler,
        block_tokens: int,
        listener: Listener,
    ) -> None:
        super().__init__(costs, scheduler, block_tokens, listener)
        self._preempted: dict[str, int] = {}
        """Generated tokens of each sample of the calls that wait since their preemption."""
        self.preemptions = 0
        """Number of preemptions so far."""

    def _make_pool(self, block_tokens: int) -> PagedPool:
        return PagedPool(self._costs.kv_capacity_tokens, block_tokens)

    # --- interface --------------------------------------------------------------------------------

    def cancel(self, call_id: str, now_s: float) -> int:
        """Drop a call, waiting or running; return the tokens that it has generated."""
        generated = 0
        if call_id in self._preempted:
            generated = self._preempted.pop(call_id) * self._sizes[call_id][0]
        return generated + super().cancel(call_id, now_s)

    def progress(self, now_s: float) -> list[tuple[str, int]]:
        """Return the output tokens so far of each call that has some, preempted ones included."""
        return super().progress(now_s) + [
            (call_id, generated * self._sizes[call_id][0])
            for call_id, generated in self._preempted.items()
            if generated
        ]

    # --- passes -----------------------------------------------------------------------------------

    def _continue(self) -> bool:
        """Add the running calls to the pass; return False if one was preempted."""
        before = self.preemptions
        for sequence in list(self._running.values()):
            if sequence.decoding and self._make_room(sequence, self._length(sequence, 1)):
                self._pool.computed(sequence.call.call_id, self._length(sequence, 1))
        super()._continue()
        return self.preemptions == before

    def _compute(self, sequence: BatchedCall) -> None:
        """Add the rest of a prompt to the pass, or a part, if there are blocks for it."""
        tokens = min(self._budget, sequence.prefill_tokens - sequence.computed)
        if self._make_room(sequence, _each(sequence, sequence.computed + tokens)):
            super()._compute(sequence)

    def _share(self, sequence: BatchedCall) -> None:
        self._pool.computed(sequence.call.call_id, _each(sequence, sequence.computed))

    def _enter_decoding(self, sequence: BatchedCall, now_s: float) -> None:
        # The prompt is shared already: it was from the start of the pass.
        SimulatedWorker._enter_decoding(self, sequence, now_s)

    def _length(self, sequence: BatchedCall, steps: int) -> int:
        """Return the computed tokens of each sample after this many further decode steps."""
        return sequence.call.prompt_tokens + self._step + steps - sequence.first_step

    def _fusable(self) -> int:
        """Return the number of decode steps until a call ends, may enter, or may find no block."""
        low, high = 1, super()._fusable()
        if self._missing_blocks(high) <= self._pool.free_blocks:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if self._missing_blocks(middle) <= self._pool.free_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _missing_blocks(self, steps: int) -> int:
        return sum(
            self._pool.missing_blocks(call_id, self._length(sequence, steps))
            for call_id, sequence in self._running.items()
            if sequence.decoding
        )

    def _end_decode(self, now_s: float) -> None:
        if self._steps > 1:  # the blocks of the first step were taken at its start
            for call_id, sequence in self._running.items():
                if sequence.decoding:
                    length = self._length(sequence, self._steps)
                    grown = self._pool.grow(call_id, length)
                    assert grown, "fused steps have room"
                    self._pool.computed(call_id, length)
        super()._end_decode(now_s)

    # --- preemption -------------------------------------------------------------------------------

    def _make_room(self, sequence: BatchedCall, tokens: int) -> bool:
        """Take blocks for this many tokens of each sample, preempting the last calls of the batch.

        Returns False if the call itself is, or was, preempted.
        """
        call_id = sequence.call.call_id
        while self._running.get(call_id) is sequence:
            if self._pool.grow(call_id, tokens):
                return True
            self._preempt(self._running[next(reversed(self._running))])
        return False

    def _preempt(self, sequence: BatchedCall) -> None:
        """Requeue a running call."""
        assert len(self._running) > 1, "a call alone fits: see check_sizes"
        call = sequence.call
        self._charge_decoded(self._step)
        generated = self._generated(sequence, self._step) // sequence.samples
        self._remove(sequence)
        sequence.last_step = -1  # it is removed from the heap when it reaches the top
        self._pool.preempted(call.call_id, call.prompt_tokens + generated)
        self._scheduler.requeue(call.call_id)
        self._sizes[call.call_id] = sequence.samples, sequence.output_tokens
        self._preempted[call.call_id] = generated
        self.preemptions += 1

    def _try(self, call: LocalCall) -> BatchedCall | None:
        sequence = super()._try(call)
        if sequence is not None and call.call_id in self._preempted:
            sequence.restarted = True
            sequence.generated = self._preempted.pop(call.call_id)
        return sequence


def _each(sequence: BatchedCall, computed: int) -> int:
    """Return the tokens of each sample when this many of a call's tokens are computed."""
    prompt = sequence.call.prompt_tokens
    return computed if computed <= prompt else prompt - (prompt - computed) // sequence.samples
