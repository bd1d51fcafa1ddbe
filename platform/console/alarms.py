"""Alarms of the console, worst first, computed from the current state; none is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fairserve.platform.background.jobs.schemas import JobOut
from fairserve.platform.fleet.member import FleetMember
from fairserve.platform.monitoring.client_views import ClientView
from fairserve.platform.monitoring.flooding import share_sign
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot, Series

Tone = Literal["bad", "warn"]

LONG_OVERLOAD_S = 60.0
REJECTED_SHARE = 0.2
LEAST_CALLS = 20
"""Minimum number of calls in a minute for an alarm about the share of rejections."""
LONG_WAIT_S = 30.0
MOST_FLOODERS = 3


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm text, with the page that has details."""

    tone: Tone
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """Input state of the alarms."""

    live: LiveSnapshot
    members: Sequence[FleetMember] = ()
    clients: Sequence[ClientView] = ()
    jobs: Sequence[JobOut] = ()
    models_without_worker: Sequence[str] = ()
    fleet_problem: str = ""
    ledger_waits_s: float | None = None
    rejected_rows: int = 0
    draining: bool = False


def alarms(health: Health) -> list[Alarm]:
    """Return all alarms, worst first."""
    found = [*_serving(health), *_load(health.live), *_floods(health), *_behind(health)]
    return sorted(found, key=lambda alarm: alarm.tone != "bad")


def _serving(health: Health) -> Iterator[Alarm]:
    place = "/console/cluster"
    if health.draining:
        yield Alarm("bad", "The server is draining and admits no new calls.")
    for model in health.models_without_worker:
        yield Alarm(
            "bad",
            f"No worker serves {model}: its calls wait and then fail. Start or undrain a worker.",
            place,
        )
    for member in health.members:
        reason = member.view(0.0)["reason"]
        if member.state == "open circuit":
            yield Alarm(
                "bad",
                f"Worker {member.worker_id} gets no calls: {reason or 'failing'}. Check its log.",
                place,
            )
        elif member.state == "joining" and reason:
            yield Alarm(
                "warn",
                f"Worker {member.worker_id} cannot join: {reason}. Correct its configuration.",
                place,
            )
    if health.fleet_problem:
        yield Alarm("warn", f"The fleet file is invalid; correct it: {health.fleet_problem}", place)


def _load(live: LiveSnapshot) -> Iterator[Alarm]:
    long = 0
    for overloaded in reversed(live.overloaded):
        if not overloaded:
            break
        long += 1
    seconds = long * live.bucket_s
    if seconds >= LONG_OVERLOAD_S:
        minutes = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        yield Alarm(
            "warn",
            f"Overloaded for {minutes}: new runs over their limits are rejected.",
            "/console/throttling",
        )
    minute = max(1, round(60 / live.bucket_s))
    refused = sum(_sum(each, minute) for each in live.activity.refused.values())
    calls = refused + _sum(live.activity.accepted, minute)
    if calls >= LEAST_CALLS and refused >= REJECTED_SHARE * calls:
        text = f"{refused:.0f} of {calls:.0f} calls were rejected in the last minute."
        yield Alarm("warn", text, "/console/refusals")
    waits = [wait for wait in live.activity.queue_p99_s[-minute:] if wait is not None]
    if waits and max(waits) >= LONG_WAIT_S:
        yield Alarm(
            "warn", f"Calls wait up to {max(waits):.0f} s in the queue.", "/console/cluster"
        )


def _floods(health: Health) -> Iterator[Alarm]:
    for each in [each for each in health.clients if _takes_far_more(each)][:MOST_FLOODERS]:
        got, due = each.service_share or 0.0, each.entitled_share or 0.0
        text = (
            f"User {each.user} gets {100 * got:.0f} % of the service and is entitled"
            f" to {100 * due:.0f} %. Limit or block it."
        )
        yield Alarm("warn", text, "/console/clients")


def _takes_far_more(client: ClientView) -> bool:
    sign = share_sign(client)
    return sign is not None and sign.tone == "bad"


def _behind(health: Health) -> Iterator[Alarm]:
    if health.ledger_waits_s is not None:
        yield Alarm(
            "bad",
            f"No ledger rows written for {health.ledger_waits_s:.0f} s. Check the database.",
        )
    if health.rejected_rows:
        yield Alarm(
            "warn",
            f"The database rejected {health.rejected_rows} ledger rows; usage lacks them."
            " Read rejected.jsonl in the journal's folder.",
        )
    for job in health.jobs:
        if job.health in ("dead", "failing", "late"):
            tone: Tone = "bad" if job.health == "dead" else "warn"
            why = f": {job.error}" if job.error and job.health != "late" else ""
            text = f"Background job {job.name} is {job.health}{why}"
            yield Alarm(tone, text, "/console/cluster")


def _sum(values: Series, last: int) -> float:
    return sum(each for each in _known(values[-last:]))


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (each for each in values if each is not None)
