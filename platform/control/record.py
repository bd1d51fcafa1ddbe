"""Records of ended calls and interactions: the units of journal and ledger.

Control makes exactly one :class:`CallRecord` per accepted or rejected call. The journal carries it, and
the ledger table stores it, upserted by ``call_id``. Wall-clock times are UTC epoch seconds. A journal
entry holds the fields of a record as plain values, so that versions can read each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from fairserve.interactions.tracking.run import RunState
from fairserve.scheduling.dispatch.events import CallOutcome

Client = tuple[str, str, str]
"""Tenant, app and user."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One ledger row. A duration is None if the call ended before it began."""

    call_id: str
    tenant: str
    app: str
    user: str
    model: str
    interaction_id: str
    stage: int
    agent: str | None
    outcome: CallOutcome
    accepted_at: float
    ended_at: float
    input_tokens: int = 0
    """Prompt tokens without ``system_tokens``."""
    system_tokens: int = 0
    cached_tokens: int = 0
    extend_tokens: int = 0
    output_tokens: int = 0
    expected_output_tokens: int | None = None
    """Prediction at its admission; None if it was not admitted, or in rows of older versions."""
    service: float = 0.0
    """Linear cost, wp=1, wq=2 (ALGORITHMS section 1), cached tokens included."""
    queue_delay_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    worker: str | None = None
    name: str = ""
    """The client's id of the call; a generated one where it chose none."""
    parents: tuple[str, ...] = ()
    """Names of the calls of its run that it follows, given or inferred."""
    served_model: str = ""
    """Model that served ``model``, the name in the request."""
    wasted: bool = False
    """Tokens were spent on a call that did not complete."""
    charged: bool = True
    """False for an attempt that delivered nothing and was repeated by its client."""
    cost: int = 0
    """Nanounits of the currency; a call that failed, or that is not charged, costs nothing."""
    price_id: str = ""
    """Id of the price of ``cost``; empty where the model had none."""
    error: str = ""
    refusal_reason: str = ""
    refusal_scope: str | None = None
    refusal_limit: int | None = None
    refusal_count: int | None = None
    refusal_window_s: float | None = None
    refusal_retry_after_s: float | None = None
    refusal_inputs: Mapping[str, Any] | None = None
    """Other inputs of a rejection: load, state of the run, money; the columns of its event."""
    mid_run: bool = False


@dataclass(frozen=True, slots=True)
class InteractionRecord:
    """One row of the interactions table, written when the interaction ends."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    state: str
    opened_at: float
    ended_at: float
    calls: int
    tokens: int
    wasted_tokens: int
    waste_cause: str = ""


@dataclass(frozen=True, slots=True)
class OpenInteractionRecord:
    """One row of the open interactions, from which a restart restores a run; ids are the client's.

    Written when a run is opened, when the call that completes it is named, and when its client closes
    it while calls are live. Runs of a single call and those of programs have none.
    """

    interaction_id: str
    tenant: str
    app: str
    user: str
    opened_at: float
    sink: str | None = None
    """Name of the call whose end completes the run."""
    closing: RunState | None = None
    """State with which the run ends once its live calls have ended."""


Record = CallRecord | InteractionRecord | OpenInteractionRecord
R = TypeVar("R", CallRecord, InteractionRecord, OpenInteractionRecord)


def plain_of(record: Record) -> dict[str, Any]:
    """Return a record as the data of an entry. Its fields are plain and are not copied."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def record_of(kind: type[R], data: Mapping[str, Any]) -> R:
    """Return the record of an entry; fields of newer versions are ignored.

    Raises TypeError if a field that it needs is missing.
    """
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in known})


def stopped_record(
    accepted: Mapping[str, Any], progress: Mapping[str, Any] | None, ended_at: float
) -> CallRecord:
    """Return the ledger row of a call that was open when the server stopped.

    Its usage is that of its last progress; later work is not charged.
    """
    record = record_of(CallRecord, {**accepted, **(progress or {})})
    return replace(
        record,
        outcome="failed",
        ended_at=max(ended_at, record.accepted_at),
        error="server stopped",
        wasted=record.input_tokens + record.system_tokens + record.output_tokens > 0,
    )
