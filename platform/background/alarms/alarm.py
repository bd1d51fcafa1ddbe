"""A finding of the rules, and the alarm that it opens. Plain values.

An alarm is identified by its kind and by what it is about; two findings about the same are one alarm. It
is open, acknowledged once an operator has seen it, and resolved once the rules have not found it for a
while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from fairserve.platform.monitoring.app_calls import AppKey

AlarmKind = Literal[
    "calls_rejected",
    "calls_waiting",
    "calls_failing",
    "over_share",
    "overloaded",
    "no_worker",
    "worker_failing",
    "worker_not_joining",
    "fleet_file",
    "ledger_behind",
    "ledger_rows_rejected",
    "job_failing",
]
"""The first three are about calls of an app, ``over_share`` about a user, the rest about the server."""
ALARM_KINDS: tuple[AlarmKind, ...] = get_args(AlarmKind)
Severity = Literal["bad", "warn"]
AlarmState = Literal["open", "acknowledged", "resolved"]


class AlarmKey(NamedTuple):
    """The kind and the subject of an alarm identify it."""

    kind: AlarmKind
    tenant: str = ""
    """Tenant and app whose calls it is about; empty for an alarm about the server."""
    app: str = ""
    subject: str = ""
    """User, model, worker or job; empty for the rest."""


@dataclass(slots=True)
class AlarmFinding:
    """A condition that holds now."""

    key: AlarmKey
    severity: Severity
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures of the condition, by name; what they are depends on the kind."""
    affected: set[AppKey] = field(default_factory=set)
    """Apps whose calls are rejected, wait or fail because of it."""


@dataclass(slots=True, eq=False)
class Alarm:
    """An alarm with its history. Times are UTC epoch seconds."""

    alarm_id: str
    key: AlarmKey
    severity: Severity
    opened_at: float
    seen_at: float
    """Time at which the rules found it last."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    affected: frozenset[AppKey] = frozenset()
    """All apps that it affected since it was opened."""
    cause: Mapping[str, Any] = field(default_factory=dict)
    """``limit`` and ``change``: the limit that rejects the calls, and the last change before it that
    touches it, as far as they are known (:mod:`fairserve.platform.background.alarms.causes`)."""
    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    resolved_at: float | None = None
    unsaved: bool = True
    """True if the database does not have its last state."""
    notified: frozenset[str] = frozenset()
    """Tenants for which the event of its opening is written."""

    @property
    def over(self) -> bool:
        """Return whether its condition no longer holds; its facts are then those of the last time."""
        return bool(self.facts.get("ended"))

    @property
    def state(self) -> AlarmState:
        """Return the state."""
        if self.resolved_at is not None:
            return "resolved"
        return "open" if self.acknowledged_at is None else "acknowledged"

    @property
    def tenants(self) -> frozenset[str]:
        """Return the tenants that see it: it is about their calls, or affects them."""
        return frozenset({self.key.tenant, *(tenant for tenant, _ in self.affected)} - {""})
