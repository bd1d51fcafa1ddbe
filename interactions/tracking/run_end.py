"""The end of a run: its final state, and the number and cause of its wasted tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairserve.interactions.tracking.run import Run, RunState, WasteCause

_CAUSES: Mapping[str, WasteCause] = {
    "refused": "throttled",
    "cancelled": "cancelled",
    "expired": "expired",
    "failed": "failed",
    "aborted": "failed",
}
_STATES: Mapping[str, RunState] = {
    "cancelled": "cancelled",
    "expired": "expired",
    "failed": "aborted",
    "refused": "aborted",
}

ENDED_BY_ITSELF: frozenset[str] = frozenset({"complete", "cancelled", "expired"})
"""States of runs that were not cut off: they had all the calls that they were going to have."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """An ended interaction; its tokens are wasted unless it is complete."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    state: RunState
    calls: int
    tokens: int
    wasted_tokens: int
    cause: WasteCause

    @classmethod
    def of(cls, run: Run, state: RunState) -> RunEnd:
        """Return the end of a run; a cause recorded in the run takes precedence over the state's."""
        complete = state == "complete"
        return cls(
            interaction_id=run.interaction_id,
            tenant=run.tenant,
            app=run.app,
            user=run.user,
            state=state,
            calls=len(run),
            tokens=run.tokens,
            wasted_tokens=0 if complete else run.tokens,
            cause="" if complete else run.trouble or cause_of(state),
        )


def cause_of(outcome: str) -> WasteCause:
    """Return the cause of waste for a call's outcome other than completed, or for a run's state."""
    return _CAUSES[outcome]


def state_of(outcome: str) -> RunState:
    """Return the final state of a run whose last call had this outcome, other than completed."""
    return _STATES[outcome]
