"""What is known of a call, or an interaction, when it has ended: the unit of journal and ledger.

Control makes exactly one :class:`CallRecord` per accepted or refused call. The journal carries it,
the ledger table holds it, upserted by ``call_id``. Wall-clock times are UTC epoch seconds. In an
entry of the journal a record is its fields as plain values, so that versions can read each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from fairserve.interactions.run import RunState
from fairserve.scheduling.events import CallOutcome

Client = tuple[str, str, str]
"""Tenant, app and user."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One ledger row. Durations are None where the call never got that far."""

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
    """Foretold when it was admitted; None where it never was, or by an older version."""
    service: float = 0.0
    """Linear cost, wp=1, wq=2 (ALGORITHMS section 1), cached tokens included."""
    queue_delay_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    worker: str | None = None
    name: str = ""
    """The client's id of the call; ours where it chose none."""
    parents: tuple[str, ...] = ()
    """Names of the calls of its run that it follows, given or inferred."""
    served_model: str = ""
    """What ``model``, the name that the client asked for, led to."""
    wasted: bool = False
    """Tokens were spent on a call that did not complete."""
    charged: bool = True
    """False for an attempt that delivered nothing and was repeated by its client."""
    cost: int = 0
    """Nanounits of the currency; a call that failed, or that is not charged, costs nothing."""
    price_id: str = ""
    """The price that ``cost`` was made with; empty where the model had none."""
    error: str = ""
    refusal_reason: str = ""
    refusal_scope: str | None = None
    refusal_limit: int | None = None
    refusal_count: int | None = None
    refusal_window_s: float | None = None
    refusal_retry_after_s: float | None = None
    refusal_inputs: Mapping[str, Any] | None = None
    """What else a refusal was decided on: load, state of the run, money; the columns of its event."""
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
    """A record as an entry's data. Its fields are plain, so nothing is copied deeply."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def record_of(kind: type[R], data: Mapping[str, Any]) -> R:
    """A record from an entry; fields that a newer version wrote are left out.

    Raises TypeError if a field that it needs is missing.
    """
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in known})


def stopped_record(
    accepted: Mapping[str, Any], progress: Mapping[str, Any] | None, ended_at: float
) -> CallRecord:
    """The ledger row of a call that was open when the server stopped.

    Its last progress is what it used; work of which nobody told is not charged to anyone.
    """
    record = record_of(CallRecord, {**accepted, **(progress or {})})
    return replace(
        record,
        outcome="failed",
        ended_at=max(ended_at, record.accepted_at),
        error="server stopped",
        wasted=record.input_tokens + record.system_tokens + record.output_tokens > 0,
    )
