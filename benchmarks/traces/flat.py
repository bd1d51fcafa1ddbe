"""Converts each request of a flat file to an interaction of one call.

Flat files list requests: time, prompt tokens and output tokens. They contain no runs, so each
request becomes a separate run, and most have no block ids, so prompts share nothing.

Weakness: runs and their gaps are lost; a client that waited for an answer before its next request
sends here at the recorded times, however slow the service is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import trace_name
from fairserve.engine.simulated.traces.model import (
    Interaction,
    Trace,
    TraceCall,
    TraceError,
)

UNSHARED_BLOCK_TOKENS = 16
"""Nominal block size of traces without block ids."""


def single_call(
    interaction_id: str,
    *,
    app: str,
    arrival_s: float,
    prompt_tokens: int,
    output_tokens: int,
    defaults: Defaults,
    user: str | None = None,
    blocks: tuple[tuple[int, int], ...] = (),
    origin: str = "",
) -> Interaction:
    """Return an interaction of one call; the app's name is its agent. 0 output tokens become 1."""
    call = TraceCall(
        call_id="0",
        agent=app,
        deps=(),
        gap_s=0.0,
        input_tokens=prompt_tokens,
        system_tokens=0,
        output_tokens=max(output_tokens, 1),
        blocks=blocks,
    )
    return Interaction(
        interaction_id=interaction_id,
        tenant=defaults.tenant,
        app=app,
        user=defaults.user if user is None else user,
        arrival_s=arrival_s,
        calls=(call,),
        origin=origin,
    )


def flat_trace(
    path: Path, interactions: Sequence[Interaction], block_tokens: int = UNSHARED_BLOCK_TOKENS
) -> Trace:
    """Return the trace of a file in the order of arrival. Raises `TraceError` without requests."""
    if not interactions:
        raise TraceError(f"{path}:1: holds no requests; at least one is needed")
    return Trace(trace_name(path), block_tokens, ()).with_interactions(interactions)
