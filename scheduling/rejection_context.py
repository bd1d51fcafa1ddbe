"""State at the time of a rejection, besides the limit: the load, and the state of the call's run.

It is collected in O(1) for rejected calls only. It explains the rejection to people and decides
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RejectionContext:
    """State on which a rejection was decided; all fields are plain values."""

    system: str
    """Name of the system in force."""
    overloaded: bool
    """True if the call's model was overloaded."""
    demand_tokens: int
    """Tokens held or requested by the model's running and queued calls, without this call."""
    capacity_tokens: int
    """KV capacity of the model's workers that take calls, in tokens."""
    high_watermark: float
    """Demand over capacity at which overload begins; it ends at ``low_watermark``."""
    low_watermark: float
    queued_calls: int
    """Number of queued calls of the model."""
    call_tokens: int
    """Tokens that the call requested: prompt and maximum output over all samples."""
    run_calls: int
    """Number of accepted calls of the run so far."""
    run_tokens: int
    """Tokens used by the ended calls of the run."""
    expected_calls: float
    """Calls of the app's longest usual run (:mod:`fairserve.interactions.tracking.immunity`)."""
    expected_tokens: float
    """Tokens of the app's longest usual run."""
    immunity_factor: float
    """Multiple of that run at which a run loses its immunity."""
    under_way: bool
    """True if the run was active: it had an accepted call."""
    immune: bool | None
    """True if the run was active and immune; None if that was not checked, because the call was
    rejected earlier."""
