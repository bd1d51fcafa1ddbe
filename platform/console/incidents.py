"""Incident cards: the current alarms with who is affected, the likely cause, and what to do about it.

An action without fields is a button with a dialog, that posts to a route of another page and leads back;
the rest are links to the place where the operator decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from fairserve.platform.background.alarms.schemas import AlarmOut
from fairserve.platform.console.formats import part
from fairserve.platform.console.limit_changes import effect_of, restorable, verb_of
from fairserve.platform.console.sessions import Viewer

FULL = 3
"""Open alarms that are shown as cards; further ones, those over and acknowledged ones have a line."""
NAMED = 4
"""Affected apps that a card names."""

_SETTINGS = ("/console/throttling", "Open the throttle settings")
_FIELDS = {
    "contract_rpm": "#{contract}.rpm_limit",
    "contract_tpm": "#{contract}.tpm_limit",
    "contract_parallel": "#{contract}.max_parallel_requests",
    "contract_budget": "#{contract}.max_budget",
}
"""Fields of the limits by the reason of a rejection."""
_WORKERS = ("/console/cluster", "Open the workers")


class IncidentLink(NamedTuple):
    """A link of a card."""

    href: str
    text: str


class Button(NamedTuple):
    """An action without fields, and the dialog that states what it does."""

    action: str
    text: str
    effect: str


@dataclass(frozen=True, slots=True)
class Incident:
    """An alarm as a card."""

    alarm: AlarmOut
    title: str
    cause: str
    affected: Sequence[IncidentLink]
    more_affected: int
    """Number of affected apps without a link."""
    links: Sequence[IncidentLink]
    button: Button | None
    may_acknowledge: bool


@dataclass(frozen=True, slots=True)
class Incidents:
    """The alarms of a page."""

    cards: Sequence[Incident]
    lines: Sequence[Incident]


def incidents(alarms: Sequence[AlarmOut], names: Mapping[str, str], viewer: Viewer) -> Incidents:
    """Return the current alarms, which come with the bad ones first; those that need nothing last."""
    shown = [_incident(each, names, viewer) for each in alarms]
    urgent: list[Incident] = []
    rest: list[Incident] = []
    for each in shown:
        (rest if each.alarm.acknowledged_at or each.alarm.over else urgent).append(each)
    return Incidents(urgent[:FULL], [*urgent[FULL:], *rest])


def _incident(alarm: AlarmOut, names: Mapping[str, str], viewer: Viewer) -> Incident:
    affected = list(_affected(alarm, names, viewer))
    may = viewer.is_admin and viewer.may("POST /console/alarms/{alarm_id}/acknowledge")
    return Incident(
        alarm=alarm,
        title=title_of(alarm, names),
        cause=_cause(alarm),
        affected=affected[:NAMED],
        more_affected=max(0, len(affected) - NAMED),
        links=[IncidentLink(*each) for each in _links(alarm, viewer)],
        button=_button(alarm, names, viewer),
        may_acknowledge=may and alarm.acknowledged_at is None and not alarm.over,
    )


def title_of(alarm: AlarmOut, names: Mapping[str, str]) -> str:
    """Return what is wrong in a few words."""
    of_app = f"Calls of {names.get(alarm.app, alarm.app)}" if alarm.app else "Calls"
    match alarm.kind:
        case "calls_rejected":
            return f"{of_app} are rejected"
        case "calls_waiting":
            return f"{of_app} wait"
        case "calls_failing":
            return f"{of_app} fail"
        case "over_share":
            return f"User {alarm.user} takes more than its share"
        case "overloaded":
            return f"{alarm.subject} is overloaded"
        case "no_worker":
            return f"No worker serves {alarm.subject}"
        case "worker_failing":
            return f"Worker {alarm.subject} gets no calls"
        case "worker_not_joining":
            return f"Worker {alarm.subject} cannot join"
        case "fleet_file":
            return "The fleet file is invalid"
        case "ledger_behind":
            return "Usage is behind"
        case "ledger_rows_rejected":
            return "Usage lacks calls"
        case "job_failing":
            return f"Background job {alarm.subject} does not succeed"


def _cause(alarm: AlarmOut) -> str:
    """Return the likely cause, beside the last change."""
    match alarm.kind:
        case "calls_rejected":
            if alarm.change:
                return ""
            if alarm.limit is None and (alarm.reason or "").startswith("contract"):
                return "Not known yet: the limit and its last change are looked up."
            return "More calls than the limit allows, which was not changed."
        case "calls_waiting":
            found = "no lost worker, no overload and no client over its share explains the wait"
            return f"Not known: {found}." if alarm.app else "The server."
        case "calls_failing":
            return "The workers answer with errors, or the calls expire in the queue."
        case "over_share":
            return "It demands more than its share while calls of others wait."
        case "overloaded":
            return "The demand is higher than the capacity of its workers."
        case "no_worker":
            return "All its workers are away, failing or drained."
        case "worker_failing":
            return "The worker does not answer, or answers with errors."
        case "worker_not_joining":
            return "Its configuration, or the connection to it."
        case "fleet_file":
            return "An entry of the file; the last valid version stays in force."
        case "ledger_behind" | "ledger_rows_rejected":
            return "The database: it does not answer, or accepts no rows."
        case "job_failing":
            return "The last run of the job; its error is on the page of the workers."


def _affected(alarm: AlarmOut, names: Mapping[str, str], viewer: Viewer) -> Iterator[IncidentLink]:
    apps = [(each.tenant, each.app) for each in alarm.affected]
    if not apps and alarm.tenant and alarm.app:
        apps = [(alarm.tenant, alarm.app)]
    for tenant, app in apps:
        text = names.get(app, app)
        if viewer.is_admin:
            text = f"{text} of {names.get(tenant, tenant)}"
        yield IncidentLink(f"/console/clients/apps/{part(app)}", text)


def _links(alarm: AlarmOut, viewer: Viewer) -> Iterator[tuple[str, str]]:
    """Yield address and text, the most helpful first."""
    of_app = {"app": alarm.app or ""}
    match alarm.kind:
        case "calls_rejected":
            yield _place_of_limit(alarm, viewer)
            query = {**of_app, "reason": alarm.reason or ""}
            yield f"/console/refusals?{urlencode(query)}", "Open the rejections"
        case "calls_waiting":
            query = {"sort": "queued_calls"}
            if viewer.is_admin and alarm.tenant:
                query["tenant"] = alarm.tenant
            yield f"/console/clients?{urlencode(query)}", "Open the queued calls"
        case "calls_failing":
            yield (
                f"/console/interactions?{urlencode({**of_app, 'state': 'ended'})}",
                "Open its runs",
            )
        case "over_share":
            client = (alarm.tenant or "", alarm.app or "", alarm.user or "")
            place = "/console/clients/" + "/".join(map(part, client))
            if viewer.is_admin and viewer.may(
                "POST /console/clients/{tenant_id}/{app_id}/{user:path}"
            ):
                yield f"{place}#block", f"Block {alarm.user}"
            yield place, "Open the client"
        case _ if not viewer.is_admin:
            return
        case "overloaded":
            yield "/console/clients?sort=queued_calls", "Open the queued calls"
            yield _SETTINGS
        case "no_worker" | "worker_failing" | "worker_not_joining":
            of = "its workers" if alarm.kind == "no_worker" else "the worker"
            yield f"/console/cluster?{urlencode({'worker': alarm.subject or ''})}", f"Open {of}"
        case "fleet_file":
            yield _WORKERS
        case "job_failing":
            yield f"/console/cluster#job-{part(alarm.subject or '')}", "Open the job"
    change = alarm.change
    if change is not None and change.action == "throttling.change" and viewer.is_admin:
        yield "/console/throttling#history", "Revert the change"
    elif change is not None:
        query = {"action": change.action} | ({"target": change.target} if change.target else {})
        yield f"/console/audit?{urlencode(query)}", "Open the change"


def _place_of_limit(alarm: AlarmOut, viewer: Viewer) -> tuple[str, str]:
    """Return the field in which the limit is changed: of its holder, or the page of the settings."""
    if (alarm.reason or "").startswith("queue") and viewer.is_admin:
        return _SETTINGS
    scope = "app" if alarm.limit is None else alarm.limit.scope
    contract = "user_contract" if scope == "user" else "contract"
    field = _FIELDS.get(alarm.reason or "", "").format(contract=contract)
    if scope == "tenant" and viewer.is_admin:
        return f"/console/clients/tenants/{part(alarm.tenant or '')}{field}", "Open the limit"
    return f"/console/clients/apps/{part(alarm.app or '')}{field}", "Open the limit"


def _button(alarm: AlarmOut, names: Mapping[str, str], viewer: Viewer) -> Button | None:
    subject, change = alarm.subject or "", alarm.change
    if alarm.over:
        return None
    if alarm.kind == "calls_rejected" and change is not None and change.entry is not None:
        fields = [(each.field, each.before, each.after) for each in change.differences]
        limits = restorable(change.action, fields)
        if limits and viewer.may("POST /console/audit/{entry_id}/restore"):
            effect = effect_of(limits, names.get(change.target, change.target or "the user"))
            return Button(f"/console/audit/{change.entry}/restore", verb_of(limits), effect)
    if alarm.kind == "worker_failing" and viewer.may(
        "POST /console/cluster/workers/{worker_id}/drain"
    ):
        effect = (
            "It finishes its calls and gets no new ones, also once it answers again, until you undrain"
            " it. The alarm ends; other workers of its model serve its calls."
        )
        action = f"/console/cluster/workers/{part(subject)}/drain"
        return Button(action, f"Drain {subject}", effect)
    if alarm.kind == "job_failing" and viewer.may("POST /console/cluster/jobs/{job}/run"):
        effect = "It runs within a few seconds, beside what the server does."
        return Button(f"/console/cluster/jobs/{part(subject)}/run", f"Run {subject} now", effect)
    return None
