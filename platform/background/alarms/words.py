"""An alarm in words: what, and what to do. For its tenant or for operators.

A tenant reads nothing of other tenants: neither who takes more than its share, nor the load of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairserve.platform.background.alarms.alarm import Alarm

_UNITS = {
    "contract_rpm": "calls",
    "contract_tpm": "tokens",
    "contract_parallel": "parallel calls",
}
"""Unit of a quota, by the reason of its rejections."""
_REASONS = {
    "queue_full": "the queue of the model is full",
    "queue_share_full": "its share of the model's queue is full",
    "model_not_allowed": "its quota does not allow the model",
    **{reason: f"a quota of {unit} is used up" for reason, unit in _UNITS.items()},
}
_DONE = {
    "change": "changed",
    "create": "created",
    "delete": "deleted",
    "drain": "drained",
    "erase": "erased",
    "join": "added",
    "profile": "profile changed",
    "purge": "purged",
    "put": "set",
    "remove": "removed",
    "restore": "restored",
    "undrain": "undrained",
}
_OVER = " It is over; calls still wait."


def text_of(alarm: Alarm, tenant: str | None) -> str:
    """Return one or two sentences; ``tenant``: the reader's, None for operators."""
    facts, own = alarm.facts, alarm.key.tenant == tenant
    match alarm.key.kind:
        case "calls_rejected":
            why = _limit(alarm)
            return f"{facts['rejected']:,} of {facts['calls']:,} calls are rejected: {why}."
        case "calls_waiting":
            usual = facts["usual_wait_s"]
            return (
                f"Calls wait {facts['wait_s']:.0f} s, usually at most {usual:.1f} s;"
                f" {facts['queued']:,} wait now."
            )
        case "calls_failing":
            return f"{facts['failed']:,} of {facts['calls']:,} calls fail."
        case _ if tenant is not None and not own:
            return _of_server(alarm)
        case "over_share":
            text = f"User {alarm.key.subject} takes more than its share while others wait"
            if tenant is not None:
                return f"{text}. Its calls exceed what the tenant is entitled to."
            if facts.get("over"):
                return f"User {alarm.key.subject} took more than its share.{_OVER}"
            received, entitled = 100 * facts["received"], 100 * facts["entitled"]
            shares = f"{received:.0f} % of {facts['models'][0]}, entitled to {entitled:.0f} %"
            return f"{text}: {shares}. Limit or block it."
        case _:
            return _for_operators(alarm)


def _of_server(alarm: Alarm) -> str:
    match alarm.key.kind:
        case "no_worker" | "worker_failing":
            return "Calls wait or fail: the server has lost workers."
        case _:
            return "Calls wait: the server is overloaded."


def _for_operators(alarm: Alarm) -> str:
    facts = alarm.facts
    over = _OVER if facts.get("over") else ""
    match alarm.key.kind:
        case "no_worker":
            if over:
                return f"No worker served {facts['model']}.{over}"
            return (
                f"No worker serves {facts['model']}: its calls wait and then fail."
                " Start or undrain a worker."
            )
        case "worker_failing":
            if over:
                return f"Worker {facts['worker']} got no calls.{over}"
            reason = facts["reason"] or "failing"
            return (
                f"Worker {facts['worker']} gets no calls: {reason}."
                " Start it again, or check its log."
            )
        case "worker_not_joining":
            return (
                f"Worker {facts['worker']} cannot join: {facts['reason']}."
                " Correct its configuration."
            )
        case "overloaded":
            return f"{facts['model']} is overloaded: new runs over their limits are rejected.{over}"
        case "fleet_file":
            return f"The fleet file is invalid; correct it: {facts['problem']}"
        case "ledger_behind":
            return (
                f"No ledger rows written for {facts['waits_s']:.0f} s. Calls are served; usage waits in"
                " the journal. Start the database, or check its disk."
            )
        case "ledger_rows_rejected":
            return (
                f"The database rejected {facts['rows']:,} ledger rows; usage lacks them."
                " Read rejected.jsonl in the journal's folder."
            )
        case _:
            why = f": {facts['error']}" if facts["error"] and facts["health"] != "late" else ""
            return f"Background job {facts['job']} is {facts['health']}{why}"


def _limit(alarm: Alarm) -> str:
    """Return the reason of the rejections, with its limit if it is known."""
    reason: str = alarm.facts["reason"]
    limit: Mapping[str, Any] | None = alarm.cause.get("limit")
    if limit is None:
        return _REASONS.get(reason, f"limit {reason}")
    window_s = limit["window_s"]
    per = f" in {window_s:g} s" if window_s else ""
    if reason in _UNITS:
        unit = _UNITS[reason] if limit["limit"] != 1 else _UNITS[reason].removesuffix("s")
        return f"the quota of the {limit['scope']} is {limit['limit']:,} {unit}{per}"
    return f"limit {reason} of {limit['limit']:,}{per} for the {limit['scope']}"


def differences_text(differences: Iterable[Mapping[str, Any]]) -> str:
    """Return the fields that a change set, as ``limit 6,000 → 6``."""
    return ", ".join(
        f"{each['field']} {_value(each['before'])} → {_value(each['after'])}"
        for each in differences
    )


def action_text(action: str) -> str:
    """Return an action of the audit log in words, as ``worker drained``."""
    kind, _, verb = action.partition(".")
    return f"{kind} {_DONE.get(verb, verb)}"


def change_text(change: Mapping[str, Any], opened_at: float, tenant: str | None) -> str:
    """Return a change as a difference: who changed what, and how long before the alarm."""
    differences = differences_text(change["differences"])
    who = "an operator" if tenant is not None and change["operator"] else change["actor"]
    before_s = max(0.0, opened_at - change["at"])
    ago = f"{before_s:.0f} s" if before_s < 120 else f"{before_s / 60:.0f} min"
    if before_s >= 7200:
        ago = f"{before_s / 3600:.0f} h"
    return f"{differences or action_text(change['action'])} by {who}, {ago} before"


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
