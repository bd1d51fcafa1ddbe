"""What a refusal was decided on, beside its limit: the load, and the state of the call's run.

Collected when a call is refused, never for others; reading it costs O(1). It is told to people, and
decides nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RejectionContext:
    """The moment of a refusal, as the decision saw it. All fields are plain values."""

    system: str
    """Name of the system in force."""
    overloaded: bool
    """Whether the call's model was."""
    demand_tokens: int
    """Of that model: what its running and queued calls hold or ask for, this call excluded."""
    capacity_tokens: int
    """KV capacity of its workers that take calls."""
    high_watermark: float
    """Demand over capacity at which an overload begins; ``low_watermark``: at which it ends."""
    low_watermark: float
    queued_calls: int
    """In the queue of that model."""
    call_tokens: int
    """What the call asked for: its prompt and its longest output over all samples."""
    run_calls: int
    """Accepted calls of its run so far."""
    run_tokens: int
    """Tokens of those of them that have ended."""
    expected_calls: float
    """Calls of the app's longest usual run (:mod:`fairserve.interactions.immunity`)."""
    expected_tokens: float
    """Tokens of the app's longest usual run."""
    immunity_factor: float
    """Multiple of that run at which a run loses its immunity."""
    under_way: bool
    """Whether its run was: it had an accepted call."""
    immune: bool | None
    """Whether it was under way within its immunity; None where nobody asked, because the call was turned
    away before."""
