"""Events of the cell that do not come from a call, and its outputs. Plain values.

The cell (:mod:`fairserve.platform.control.cell`) also handles the messages of calls
(:mod:`fairserve.platform.control.messages`) and the events of the dispatcher
(:mod:`fairserve.scheduling.events`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fairserve.interactions.tracking.run import RestoredRun
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.journal.entries import Kind
from fairserve.platform.control.messages import (
    Attached,
    Cancel,
    Grant,
    Progress,
    RejectCall,
    Release,
    Submit,
)
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling.events import CallOutcome, Event

# --- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotStored:
    """The journal could not store an accepted call: it ends without a row."""

    call_id: str


@dataclass(frozen=True, slots=True)
class CallsLost:
    """The server of these calls is lost: they end. If it is only silent, those that are queued do."""

    call_ids: tuple[str, ...]
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Draining:
    """New calls are rejected from now on; ``ends`` the remaining ones, too."""

    ends: bool = False


@dataclass(frozen=True, slots=True)
class RunRestored:
    """A run that was open before a restart is restored."""

    run: RestoredRun
    opened_at: float
    """UTC epoch second at which it was opened."""


@dataclass(frozen=True, slots=True)
class SystemChanged:
    """Another system, or other parameters of it, are in force from now on."""

    system: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PricesChanged:
    """Calls that are submitted from now on have these prices."""

    prices: PriceBook


@dataclass(frozen=True, slots=True)
class ClockSet:
    """UTC epoch seconds are the time of the cell plus this offset from now on."""

    utc_offset_s: float


@dataclass(frozen=True, slots=True)
class DecodedTokensDue:
    """The dispatcher gets the decoded tokens that were collected since the last of these events."""


CellEvent = (
    Submit
    | Progress
    | Release
    | Cancel
    | NotStored
    | CallsLost
    | Draining
    | RunRestored
    | SystemChanged
    | PricesChanged
    | ClockSet
    | DecodedTokensDue
    | Event
)

# --- outputs ---------------------------------------------------------------------------------------


class JournalRow(NamedTuple):
    """An entry for the journal."""

    kind: Kind
    key: str
    """Id of the call in the ledger, or of the run."""
    data: dict[str, Any]


class CallAnswer(NamedTuple):
    """The answer to a call that was submitted or requeued."""

    record_id: str
    answer: Grant | RejectCall | FairServeError


class CallMessage(NamedTuple):
    """A call has its place in its run, or a granted call must stop."""

    record_id: str
    message: Attached | Cancel


CallStep = Literal[
    "accepted", "granted", "requeued", "started", "progressed", "ended", "dropped", "rejected"
]


class CallChange(NamedTuple):
    """A step in the life of a call; the last one is ``ended``, ``dropped`` or ``rejected``."""

    call: CallState
    """Its state after the whole event, read only."""
    step: CallStep
    outcome: CallOutcome = "refused"
    """Outcome of a call that ended."""
    reason: str = ""
    """Error of a call that ended, or the reason of its rejection."""


class RunBegan(NamedTuple):
    """A run began, or was reopened."""

    tenant: str


class RunOver(NamedTuple):
    """A run ended."""

    end: RunEnd


Output = JournalRow | CallAnswer | CallMessage | CallChange | RunBegan | RunOver
