"""The rules: which conditions are an alarm now. No clock and no database; fed with samples.

An app is a victim if an unusual share of its own calls is rejected or fails, or if its calls wait far
longer than they usually do. Unusual is measured against the app itself: a running mean over half an
hour, which is not learned while the app is a victim. So a tenant with a thousandth of all calls is seen
as well as the largest, and one that always meets its quota raises nothing new.

A victim of something larger raises no alarm of its own. It is counted among those affected by the alarm
about the cause, which is looked for in this order: no worker for the model, a failing worker of it, a
client far over its share, overload. So one cause is one alarm. A client's share is that of one model,
and explains what happens to calls for this model only.

A client over its share is an alarm only while others with demand get less than theirs, and calls wait. A
state that an operator made is none: a worker or a model that is drained, a blocked user. A quota that
works as set is an alarm only while its rejections are unusual: they become usual during the alarm, which
ends after half an hour to 100 minutes. If the quota was changed within the day before, they become usual
only once the alarm is acknowledged, because the change may be a mistake.

Hysteresis: an alarm that is open needs half of what is unusual to remain so
(:class:`~fairserve.platform.background.alarms.open_alarms.OpenAlarms` adds the time).

Cost: O(apps with calls in the last minute * 12 buckets), about 60 us an app. Weaknesses: rejections and
failures of an app with less than ``LEAST_CALLS`` a minute raise nothing, nor do those of one that
usually has more than ``MOST_USUAL`` of them. While a worker of a model fails, no client is found over
its share of it. While the database is away no change of a quota is known.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairserve.platform.background.alarms.alarm import (
    Alarm,
    AlarmFinding,
    AlarmKey,
    AlarmKind,
    Severity,
)
from fairserve.platform.control.messages import Client
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.app_calls import AppCalls, AppKey

SHORT_BUCKETS = 2
"""Buckets of the short window, which sees a sudden change within ten seconds. It is not used for what an
app usually has more of than half of ``BAD_SHARE``: a quota used up in a part of a minute rejects all in
the rest of it.
"""
LEAST_CALLS = 5
"""Minimum number of rejected or failed calls in a window for an alarm, and of waits for their p99."""
BAD_SHARE = 0.2
"""Share of an app's own calls from which on rejections and failures are an alarm."""
MOST_USUAL = 0.9
"""Usual share of rejected or failed calls above which no share is unusual."""
TIMES_USUAL = 2.0
"""Factor over the usual share or wait from which on it is unusual."""
LONG_WAIT_S = 10.0
"""Least wait that is an alarm of its own."""
CROWDED_WAIT_S = 3.0
"""Least wait of others for an alarm about a client over its share."""
RECENT_BUCKETS = 4
"""Buckets without a rejection or a failure after which an app is no victim of them any more."""
LONG_OVERLOAD_S = 60.0
"""Seconds of overload that are an alarm, even if no calls wait unusually long."""
EFFECTS_S = 600.0
"""Longest time for which a cause that is over explains calls that still wait."""
LEARNING_S = 1800.0
"""Time constant of what is usual."""
MAX_USUAL = 10_000
"""Apps of which the usual figures are kept; the least recently seen are forgotten first."""
OVER_SHARE_TIMES, OVER_SHARE_PART = 1.5, 0.25
"""Least ratio and difference of received and entitled share for an alarm: others wait because of it."""
MOST_OVER_SHARE = 3


@dataclass(frozen=True, slots=True)
class SeenModel:
    """A model's pool."""

    name: str
    serves: bool
    """True if a worker takes its calls, or is starting for the first time."""
    drained: bool
    """True if an operator has drained its workers."""
    overloaded: bool


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A worker of the pool."""

    worker_id: str
    model: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeenClient:
    """A client with demand for a model in the short window; shares are among all of these."""

    owner: Client
    model: str
    received: float
    entitled: float
    queued: int


@dataclass(frozen=True, slots=True)
class SeenServer:
    """The state of the server beside its calls."""

    models: Sequence[SeenModel] = ()
    workers: Sequence[SeenWorker] = ()
    fleet_problem: str = ""
    """Error of the fleet file; empty if there is none."""
    ledger_waits_s: float | None = None
    """Seconds for which no ledger row could be written; None if they can."""
    rejected_rows: int = 0
    """Ledger rows that the database rejects."""
    jobs: Mapping[str, tuple[str, str]] | None = None
    """Health and error of each background job that is not fine."""


@dataclass(slots=True)
class _Usual:
    """The usual figures of an app."""

    rejected_share: float = 0.0
    failed_share: float = 0.0
    wait_s: float = 0.0

    def learn(self, rejected_share: float, failed_share: float, wait_s: float) -> None:
        """Move towards the figures of one sample."""
        part = BUCKET_S / LEARNING_S
        self.rejected_share += part * (rejected_share - self.rejected_share)
        self.failed_share += part * (failed_share - self.failed_share)
        self.wait_s += part * (wait_s - self.wait_s)


@dataclass(frozen=True, slots=True)
class Victim:
    """An app whose calls are rejected, wait or fail unusually often or long."""

    app: AppKey
    kind: AlarmKind
    model: str
    facts: Mapping[str, object]
    waits_s: float = 0.0

    @property
    def reason(self) -> str:
        """Return the most frequent reason of the rejections; empty without any."""
        return str(self.facts.get("reason", ""))

    @property
    def finding(self) -> AlarmFinding:
        """Return the finding about the app itself."""
        return AlarmFinding(AlarmKey(self.kind, *self.app), "bad", dict(self.facts), {self.app})


class Rules:
    """Finds what is wrong, sample by sample. Only what is usual is remembered."""

    def __init__(self, calls: AppCalls) -> None:
        self._calls = calls
        self._usual: OrderedDict[AppKey, _Usual] = OrderedDict()
        self._overloaded_since: dict[str, float] = {}
        self._over_since: dict[AlarmKey, float] = {}
        """Times since which causes with an open alarm have not been found."""

    # --- victims ----------------------------------------------------------------------------------

    def victims(
        self, open_alarms: Mapping[AlarmKey, Alarm], now_s: float
    ) -> Iterator[list[Victim]]:
        """Yield for each app what it is a victim of now, after the close of a bucket.

        An app takes up to 0.1 ms: with many apps, let the event loop do other work in between.
        """
        self._calls.settle(now_s)
        for app in sorted(self._calls.apps()):
            yield self._victim(app, open_alarms, now_s)

    def _victim(
        self, app: AppKey, open_alarms: Mapping[AlarmKey, Alarm], now_s: float
    ) -> list[Victim]:
        usual = self._usual.setdefault(app, _Usual())
        self._usual.move_to_end(app)
        if len(self._usual) > MAX_USUAL:
            self._usual.popitem(last=False)
        long = self._calls.minute(app)
        short = self._calls.window(app, SHORT_BUCKETS)
        waiting = self._calls.waiting(app, now_s)
        of_kind = {
            kind: open_alarms.get(AlarmKey(kind, *app))
            for kind in ("calls_rejected", "calls_failing", "calls_waiting")
        }
        found = []

        rejected_from = _threshold(usual.rejected_share, of_kind["calls_rejected"])
        for each in (short, long) if usual.rejected_share < BAD_SHARE / 2 else (long,):
            if each.rejected >= LEAST_CALLS and each.rejected_share >= rejected_from:
                facts = {
                    "rejected": each.rejected,
                    "calls": each.calls,
                    "usual_share": usual.rejected_share,
                    "reason": each.reason,
                }
                found.append(Victim(app, "calls_rejected", each.model, facts))
                break
        failed_from = _threshold(usual.failed_share, of_kind["calls_failing"])
        for each in (short, long) if usual.failed_share < BAD_SHARE / 2 else (long,):
            if each.failed >= LEAST_CALLS and each.failed >= failed_from * each.ended:
                facts = {
                    "failed": each.failed,
                    "calls": each.ended,
                    "usual_share": usual.failed_share,
                }
                found.append(Victim(app, "calls_failing", each.model, facts))
                break
        waits_s = waiting.oldest_s
        if short.started >= LEAST_CALLS:
            waits_s = max(waits_s, short.wait_p99_s)
        times = TIMES_USUAL if of_kind["calls_waiting"] is None else (1 + TIMES_USUAL) / 2
        if waits_s >= max(CROWDED_WAIT_S, times * usual.wait_s):
            facts = {"wait_s": waits_s, "usual_wait_s": usual.wait_s, "queued": waiting.calls}
            model = waiting.model or long.model
            found.append(Victim(app, "calls_waiting", model, facts, waits_s))
        if long.calls and all(_becomes_usual(each, of_kind[each.kind]) for each in found):
            failed_share = long.failed / long.ended if long.ended else 0.0
            usual.learn(long.rejected_share, failed_share, long.wait_p99_s)
        return [each for each in found if self._lasts(each)]

    def _lasts(self, victim: Victim) -> bool:
        """Return whether it happens still, and not only earlier in the minute."""
        if victim.kind == "calls_waiting":
            return True
        recent = self._calls.window(victim.app, RECENT_BUCKETS)
        return bool(recent.rejected if victim.kind == "calls_rejected" else recent.failed)

    # --- causes -----------------------------------------------------------------------------------

    def find(
        self,
        victims: Sequence[Victim],
        server: SeenServer,
        clients: Sequence[SeenClient],
        open_alarms: Iterable[Alarm],
        is_blocked: Callable[[Client], bool],
        now_s: float,
    ) -> list[AlarmFinding]:
        """Return all that is wrong now, worst first. ``clients``: empty if no calls wait.

        A cause that is over explains its victims while its alarm is open, which remains so while there
        are any, for ``EFFECTS_S`` at most.
        """
        no_worker = _no_worker(server)
        failing = _failing_workers(server, {each.key.subject for each in no_worker})
        found = [*no_worker, *failing]
        past = self._past(open_alarms, now_s)
        lost = {each.facts["model"] for each in (*found, *past) if each.key.kind in _WORKERS}
        if any(each.waits_s for each in victims):
            found += _over_share([each for each in clients if each.model not in lost], is_blocked)
        explained = {*lost, *_crowded((*found, *past))}
        overloaded = self._overloaded(server, victims, now_s)
        found += [each for each in overloaded if each.key.subject not in explained]
        causes = (*found, *past)
        for victim in victims:
            cause = next((each for each in causes if _explains(each, victim)), None)
            if cause is not None:
                cause.affected.add(victim.app)
            elif victim.kind != "calls_waiting" or victim.waits_s >= LONG_WAIT_S:
                found.append(victim.finding)
        now = {each.key for each in found}
        self._over_since = {
            each: from_s for each, from_s in self._over_since.items() if each not in now
        }
        found += [each for each in past if each.affected and each.key not in now]
        found += [*_not_joining(server), *_storage(server)]
        return sorted(found, key=lambda each: each.severity != "bad")

    def _past(self, alarms: Iterable[Alarm], now_s: float) -> list[AlarmFinding]:
        """Return the causes of open alarms, as if they were over."""
        causes = [each for each in alarms if each.key.kind in _CAUSES]
        self._over_since = {each.key: self._over_since.get(each.key, now_s) for each in causes}
        return [
            AlarmFinding(each.key, each.severity, {**each.facts, "over": True})
            for each in causes
            if now_s - self._over_since[each.key] < EFFECTS_S
        ]

    def _overloaded(
        self, server: SeenServer, victims: Sequence[Victim], now_s: float
    ) -> list[AlarmFinding]:
        """Return the overloaded models: for long, or with calls that wait because of it."""
        since = {
            model.name: self._overloaded_since.get(model.name, now_s)
            for model in server.models
            if model.overloaded
        }
        self._overloaded_since = since
        waited = {each.model for each in victims if each.waits_s >= LONG_WAIT_S}
        return [
            AlarmFinding(AlarmKey("overloaded", subject=model), "warn", {"model": model})
            for model, from_s in since.items()
            if now_s - from_s >= LONG_OVERLOAD_S or model in waited
        ]


def _threshold(usual: float, alarm: Alarm | None) -> float:
    """Return the share from which on rejections or failures of an app are an alarm, or remain one.

    Less than a quarter of the calls that usually succeed: beyond a quota, the share of those follows
    from how many are made.
    """
    if usual > MOST_USUAL:
        return math.inf
    share = max(BAD_SHARE, min(TIMES_USUAL * usual, (3 + usual) / 4))
    return share if alarm is None else (usual + share) / 2


def _becomes_usual(victim: Victim, alarm: Alarm | None) -> bool:
    """Return whether an open alarm is about a quota that works as set: see the module."""
    if alarm is None or not victim.reason.startswith(_QUOTAS):
        return False
    return alarm.acknowledged_at is not None or "change" not in alarm.cause


def _no_worker(server: SeenServer) -> list[AlarmFinding]:
    return [
        AlarmFinding(AlarmKey("no_worker", subject=model.name), "bad", {"model": model.name})
        for model in server.models
        if not model.serves and not model.drained
    ]


def _failing_workers(server: SeenServer, without: Collection[str]) -> list[AlarmFinding]:
    """Return the failing workers of models that others serve, too."""
    return [
        AlarmFinding(
            AlarmKey("worker_failing", subject=worker.worker_id),
            "bad",
            {"worker": worker.worker_id, "reason": worker.reason, "model": worker.model},
        )
        for worker in server.workers
        if worker.state == "open circuit" and worker.model not in without
    ]


def _not_joining(server: SeenServer) -> list[AlarmFinding]:
    return [
        AlarmFinding(
            AlarmKey("worker_not_joining", subject=worker.worker_id),
            "warn",
            {"worker": worker.worker_id, "reason": worker.reason},
        )
        for worker in server.workers
        if worker.state == "joining" and worker.reason
    ]


def _over_share(
    clients: Sequence[SeenClient], is_blocked: Callable[[Client], bool]
) -> list[AlarmFinding]:
    """Return the clients far over their share of a model, the largest share first, while others get
    less than theirs of it. Figures of a client of several models are those of its largest share.
    """
    short: dict[str, set[Client]] = {}
    for each in clients:
        if each.queued and each.received < each.entitled:
            short.setdefault(each.model, set()).add(each.owner)
    over = (
        each
        for each in clients
        if each.received >= OVER_SHARE_TIMES * each.entitled
        and each.received - each.entitled >= OVER_SHARE_PART
        and short.get(each.model, set()) - {each.owner}
        and not is_blocked(each.owner)
    )
    found: dict[Client, AlarmFinding] = {}
    for each in sorted(over, key=lambda each: (-each.received, each.owner, each.model)):
        if each.owner in found:
            found[each.owner].facts["models"].append(each.model)
        elif len(found) < MOST_OVER_SHARE:
            facts = {
                "received": each.received,
                "entitled": each.entitled,
                "queued": each.queued,
                "models": [each.model],
            }
            found[each.owner] = AlarmFinding(AlarmKey("over_share", *each.owner), "warn", facts)
    return list(found.values())


def _crowded(causes: Iterable[AlarmFinding]) -> Iterator[str]:
    """Yield the models of which a client is over its share."""
    for each in causes:
        if each.key.kind == "over_share":
            yield from each.facts["models"]


_WORKERS = ("no_worker", "worker_failing")
_CAUSES = (*_WORKERS, "over_share", "overloaded")
_QUOTAS = ("contract_", "model_not_allowed")
"""Beginnings of the reasons of rejections by a quota."""


def _explains(cause: AlarmFinding, victim: Victim) -> bool:
    """Return whether a finding is the cause of an app's rejections, failures or waits."""
    full = victim.reason in ("queue_full", "queue_share_full")
    waits = victim.kind == "calls_waiting" or full
    match cause.key.kind:
        case "no_worker" | "worker_failing":
            failed = victim.kind == "calls_failing"
            return (waits or failed) and cause.facts["model"] == victim.model
        case "over_share":
            own = victim.app == (cause.key.tenant, cause.key.app)
            rejected = own and victim.kind == "calls_rejected"
            return (waits or rejected) and victim.model in cause.facts["models"]
        case "overloaded":
            return waits and cause.facts["model"] == victim.model
    return False


def _storage(server: SeenServer) -> list[AlarmFinding]:
    """Return what is wrong with files, ledger and jobs."""
    found = []
    if server.fleet_problem:
        facts = {"problem": server.fleet_problem}
        found.append(AlarmFinding(AlarmKey("fleet_file"), "warn", facts))
    if server.ledger_waits_s is not None:
        facts_s = {"waits_s": server.ledger_waits_s}
        found.append(AlarmFinding(AlarmKey("ledger_behind"), "bad", facts_s))
    if server.rejected_rows:
        rows = {"rows": server.rejected_rows}
        found.append(AlarmFinding(AlarmKey("ledger_rows_rejected"), "warn", rows))
    for job, (health, error) in (server.jobs or {}).items():
        state = {"job": job, "health": health, "error": error}
        severity: Severity = "bad" if health == "dead" else "warn"
        found.append(AlarmFinding(AlarmKey("job_failing", subject=job), severity, state))
    return found
