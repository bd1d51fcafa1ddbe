"""The loop of the embedded engine in virtual time: every pass decodes, and prefills beside it.

A pass has a budget of tokens (``max_prefill_tokens``). Running decodes use one each; started
prefills and new calls use the rest, in chunks, so a long prompt delays running streams by at most
passes of that size. A prompt is shared once it is computed completely: calls with one prefix that
arrive together each compute it, as in the engine.

Passes without a prefill are decode steps, fused if nothing can be admitted, as in the other loops.
"""

from __future__ import annotations

import math

from fairserve.engine.simulated.worker import BatchedCall, SimulatedWorker


class MixedWorker(SimulatedWorker):
    """A worker for cost models with the loop ``mixed``."""

    def advance(self, now_s: float) -> None:
        """Complete the pass that ends now, its decodes before its prefills, and begin the next one."""
        if self._steps:
            self._end_decode(now_s)
            self._began_s = now_s  # the time of the ended pass is counted
        if self._pass:
            self._end_prefill(now_s)
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._pass_tokens, self._pass_pairs = 0, 0.0
        if self._continue() and len(self._scheduler):
            self._admit(now_s)
        if self._pass:
            self._steps = 1 if self._sequences else 0
            self.next_s = now_s + self._decode_s(1)
        elif self._running:
            self._steps = self._fusable()
            self.next_s = now_s + self._decode_s(self._steps)
        else:
            self.next_s = math.inf

    def _continue(self) -> bool:
        """Add the incomplete prompts to the pass; return whether waiting calls may enter."""
        self._budget = max(0, self._costs.max_prefill_tokens - self._sequences)
        for sequence in list(self._prefilling):
            self._compute(sequence)
        return True

    def _decode_s(self, steps: int) -> float:
        if not self._pass:
            return super()._decode_s(steps)
        return self._costs.mixed_s(
            self._pass_tokens, self._pass_pairs, self._sequences, self._held_tokens
        )

    def _share(self, sequence: BatchedCall) -> None:
        """Share nothing yet: see :meth:`_enter_decoding`."""

    def _enter_decoding(self, sequence: BatchedCall, now_s: float) -> None:
        self._pool.computed(sequence.call.call_id, sequence.call.prompt_tokens)
        super()._enter_decoding(sequence, now_s)
