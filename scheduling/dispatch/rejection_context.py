"""State that a rejection was decided on, beside its limit: the load, and the state of the call's run.

Collected when a call is rejected, never for others, in O(1). It is for people and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RejectionContext:
    """The state at a rejection, as the decision saw it; all fields are plain values."""

    system: str
    """Name of the system in force."""
    overloaded: bool
    """True if the call's model was overloaded."""
    demand_tokens: int
    """Tokens that the model's running and queued calls hold or request, without this call."""
    capacity_tokens: int
    """KV capacity of its workers that take calls."""
    high_watermark: float
    """Demand over capacity at which an overload begins; ``low_watermark``: at which it ends."""
    low_watermark: float
    queued_calls: int
    """Queued calls of that model."""
    call_tokens: int
    """Tokens that the call requested: its prompt and its longest output over all samples."""
    run_calls: int
    """Accepted calls of its run so far."""
    run_tokens: int
    """Tokens of those of them that have ended."""
    expected_calls: float
    """Calls of the app's longest usual run (:mod:`fairserve.interactions.tracking.immunity`)."""
    expected_tokens: float
    """Tokens of the app's longest usual run."""
    immunity_factor: float
    """Multiple of that run at which a run loses its immunity."""
    under_way: bool
    """True if its run was active: it had an accepted call."""
    immune: bool | None
    """True if its run was active within its immunity; None if that was not checked, because the call was
    rejected before."""
