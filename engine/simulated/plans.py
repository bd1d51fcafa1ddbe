"""Converts the planned calls of a trace to calls of the core: client, sizes, and block keys."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Literal

import numpy as np

from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall, TraceError
from fairserve.interactions.call import Call, client_id
from fairserve.scheduling.locality.block_keys import BlockKeys

Isolation = Literal["none", "tenant", "app", "user"]
"""Scope of shared cached prefixes: all calls, or those of a tenant, an app or a user."""

_MODEL = "model"
_SCOPE_BITS = 40
"""Block ids of a trace are below 2 to this power; higher bits separate sessions and salts."""


class Plans:
    """Converts the calls of one trace to calls of the core.

    A call's ``max_tokens`` is the longest output of its app, since traces lack it: the schedulers must
    not infer an output's length from its bound.
    """

    def __init__(self, trace: Trace, isolation: Isolation) -> None:
        self._isolation = isolation
        self._block_tokens = trace.block_tokens
        self._salts: dict[str, int] = {}
        self._longest_output: dict[str, int] = {}
        for interaction in trace.interactions:
            longest = max(call.output_tokens for call in interaction.calls)
            app = interaction.app
            self._longest_output[app] = max(self._longest_output.get(app, 1), longest)

    def call(self, interaction: Interaction, planned: TraceCall) -> Call:
        """Return a call without its block keys, which are many and created when it arrives."""
        run_id = interaction.interaction_id
        return Call(
            call_id=f"{run_id}/{planned.call_id}",
            tenant=interaction.tenant,
            app=interaction.app,
            user=interaction.user,
            interaction_id=run_id,
            model=_MODEL,
            input_tokens=planned.input_tokens,
            system_tokens=planned.system_tokens,
            max_output_tokens=self._longest_output[interaction.app],
            samples=planned.samples,
            agent=planned.agent,
            parents=tuple(f"{run_id}/{dep}" for dep in planned.deps),
            single=len(interaction.calls) == 1,
        )

    def block_keys(self, interaction: Interaction, planned: TraceCall) -> array[int]:
        """Return the trace's block ids, separated by session or salt. O(blocks)."""
        salt = self._salt(interaction)
        offset = 0
        if salt:
            offset = self._salts.setdefault(salt, len(self._salts) + 1) << _SCOPE_BITS
        keys = array("Q")
        for start, count in planned.blocks:
            ids = np.arange(start + offset, start + offset + count, dtype=np.uint64)
            keys.frombytes(ids.tobytes())
        return keys

    def output_keys(
        self,
        run: Interaction,
        planned: TraceCall,
        keys: BlockKeys,
        next_calls: Iterable[TraceCall],
    ) -> BlockKeys:
        """Return the keys of the full blocks after a prompt, as far as they are known. O(blocks).

        A trace contains no outputs. Assumption: if a call that waits for this one has a prompt that
        begins with this one's and is longer by this output or more, the output is what follows.
        Unknown (empty) without such a call, or if the end of this prompt is unique to the call.
        """
        begin = planned.prompt_tokens // self._block_tokens
        end = (planned.prompt_tokens + planned.output_tokens) // self._block_tokens
        if len(keys) == begin:
            for call in next_calls:
                if call.prompt_tokens >= planned.prompt_tokens + planned.output_tokens:
                    longer = self.block_keys(run, call)
                    if longer[:begin] == keys:
                        return longer[begin:end]
        return ()

    def _salt(self, interaction: Interaction) -> str:
        if interaction.scope == "session":
            return f"session {interaction.interaction_id}"
        if self._isolation == "tenant":
            return f"tenant {interaction.tenant}"
        if self._isolation == "app":
            return f"app {client_id((interaction.tenant, interaction.app))}"
        if self._isolation == "user":
            return f"user {client_id((interaction.tenant, interaction.user))}"
        return ""


def check_sizes(trace: Trace, costs: CostModel) -> None:
    """Raise TraceError for a call that never fits into a worker's pool, or a block id out of range."""
    capacity = costs.kv_capacity_tokens
    for interaction in trace.interactions:
        for call in interaction.calls:
            need = call.prompt_tokens + call.output_tokens * call.samples
            if costs.loop == "paged":
                need = _paged_tokens(call, trace.block_tokens)
            last = max((start + count - 1 for start, count in call.blocks), default=0)
            if need > capacity or (need == capacity and costs.loop != "paged"):
                what = f"needs {need} tokens; a worker of {costs.name} holds {capacity}"
            elif last >> _SCOPE_BITS:
                what = f"has block id {last}; allowed: below 2^{_SCOPE_BITS}"
            else:
                continue
            raise TraceError(
                f"{interaction.origin or trace.name}: call {call.call_id!r} of interaction "
                f"{interaction.interaction_id!r} {what}"
            )


def _paged_tokens(call: TraceCall, block_tokens: int) -> int:
    """Return the tokens of a call's blocks at its end; the last token of an output is not held."""
    shared = call.prompt_tokens // block_tokens
    longest = -(-(call.prompt_tokens + call.output_tokens - 1) // block_tokens)
    return (shared + (longest - shared) * call.samples) * block_tokens
