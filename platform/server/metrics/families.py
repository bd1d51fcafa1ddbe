"""Gauges of a scrape: what control, workers, journal, ledger and jobs are now. Each is O(its rows)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairserve.platform.background.alarms.alarm import ALARM_KINDS
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.control.messages import ClusterView, ModelView, WorkerView
from fairserve.platform.control.order import EventOrder
from fairserve.platform.control.settings import Role
from fairserve.platform.control.storage import RowsJournal, RowsLedger
from fairserve.platform.db.jobs import JobState
from fairserve.platform.fleet.member import FleetMember
from fairserve.platform.monitoring.client_shares import Share, ShareReader
from fairserve.platform.monitoring.span_counts import SpanCounts

STATES = ("joining", "ready", "draining", "open circuit")
OTHER = "other"
"""Labels of the clients without a name."""

Row = tuple[Sequence[str], float]


_OF_MODELS = {
    "calls_queued": ("queued_calls", "Calls that wait for a worker."),
    "calls_held": ("held_calls", "Queued calls of runs that wait for memory."),
    "runs_resident": ("resident_runs", "Runs that may hold memory."),
    "queue_demand_tokens": ("queued_tokens", "Tokens of KV cache for which queued calls wait."),
    "queue_expected_wait_seconds": (
        "expected_wait_s",
        "Expected wait of a call that is queued now; 0 while work does not wait.",
    ),
    "background_calls_queued": (
        "background_queued_calls",
        "Calls of batches that wait for a worker.",
    ),
    "background_calls_running": (
        "background_running_calls",
        "Calls of batches that a worker has.",
    ),
    "overloaded": ("overloaded", "1 while the model is overloaded."),
    "load_demand_tokens": ("demand_tokens", "Tokens of queued and running calls."),
    "load_capacity_tokens": ("capacity_tokens", "Tokens of KV cache of the model's workers."),
    "load_high_watermark_ratio": (
        "high_watermark",
        "Demand over capacity at which overload begins.",
    ),
    "load_low_watermark_ratio": ("low_watermark", "Demand over capacity at which overload ends."),
}
"""Attribute of a model's view and text, by the name of the gauge."""
_OF_WORKERS = {
    "worker_calls": ("calls", "Calls that the worker has."),
    "worker_kv_capacity_tokens": (
        "kv_capacity_tokens",
        "Tokens that the KV cache of the worker holds.",
    ),
    "worker_resident_tokens": (
        "resident_tokens",
        "Tokens of KV cache for the runs that have a place at the worker.",
    ),
}


def build_info(version: str, system: str) -> Iterator[Metric]:
    """Yield the versions that run."""
    build = (version, ".".join(map(str, sys.version_info[:3])))
    text = "Versions that run; the value is 1."
    yield _gauge("build_info", text, ("version", "python"), [(build, 1)])
    text = "System that schedules and throttles; the value is 1."
    yield _gauge("system_info", text, ("system",), [((system,), 1)])


def cluster(view: ClusterView) -> Iterator[Metric]:
    """Yield load, overload, queues and interactions, as control sees them."""
    yield _one("interactions_active", "Interactions in progress.", view.live_interactions)
    yield _one("calls_running", "Calls that a worker has.", view.running_calls)
    text = "1 while the server accepts no new calls because it stops."
    yield _one("draining", text, view.draining)
    for name, (attribute, text) in _OF_MODELS.items():
        yield _gauge(
            name, text, ("model",), [((m.model,), getattr(m, attribute)) for m in view.models]
        )
    text = "Workers that the demand takes; above the number of those that serve, work waits."
    needed = [((m.model,), _workers_needed(m, view.workers)) for m in view.models]
    yield _gauge("workers_needed", text, ("model",), needed)


def _workers_needed(model: ModelView, workers: Sequence[WorkerView]) -> float:
    """Return a number of average workers of a model; without any of them, 1 while it has calls."""
    serving = sum(each.model == model.model and not each.draining for each in workers)
    if not serving or not model.capacity_tokens:
        return float(model.demand_tokens > 0)
    return serving * model.demand_tokens / model.capacity_tokens


def workers(members: Sequence[FleetMember], view: ClusterView) -> Iterator[Metric]:
    """Yield the state of each worker, its circuit, and its load."""
    label = ("worker",)
    yield _gauge(
        "worker_state",
        "1 for the state that the worker has.",
        ("worker", "state"),
        [((m.worker_id, state), m.state == state) for m in members for state in STATES],
    )
    text = "1 while the circuit of the worker is open or half open."
    rows = [((m.worker_id,), m.circuit.state != "closed") for m in members]
    yield _gauge("worker_circuit_open", text, label, rows)
    opened = CounterMetricFamily(
        "fairserve_worker_circuit_opened",
        "Times that the circuit of the worker has opened since it was added.",
        labels=label,
    )
    for member in members:
        opened.add_metric((member.worker_id,), member.circuit.opened)
    yield opened
    yield _gauge(
        "worker_kv_used_ratio",
        "Share of its KV cache that running sequences hold, as the worker reports.",
        label,
        [
            ((m.worker_id,), m.metrics.kv_used_share)
            for m in members
            if m.metrics is not None and m.metrics.kv_used_share is not None
        ],
    )
    text = "Tokens of the calls that the worker has, those of other servers included."
    demands = [((w.worker_id,), w.demand_tokens + w.foreign_tokens) for w in view.workers]
    yield _gauge("worker_demand_tokens", text, label, demands)
    for name, (attribute, text) in _OF_WORKERS.items():
        values = [((w.worker_id,), getattr(w, attribute)) for w in view.workers]
        yield _gauge(name, text, label, values)


def shares(found: ShareReader) -> Iterator[Metric]:
    """Yield served and entitled shares of the clients with a name, and of all others."""
    rows: list[tuple[tuple[str, str, str], Share]] = [
        *found.top.items(),
        ((OTHER, OTHER, OTHER), found.other),
    ]
    labels = ("tenant", "app", "user")
    yield _gauge(
        "client_served_ratio",
        "Share of the service of five minutes that the client got.",
        labels,
        [(owner, share.served) for owner, share in rows],
    )
    yield _gauge(
        "client_entitled_ratio",
        "Share of the service that the client is entitled to among the active ones.",
        labels,
        [(owner, share.entitled) for owner, share in rows],
    )
    yield _one("clients_active", "Clients served in five minutes or with calls.", found.active)
    index = found.jain_index
    yield _gauge(
        "fairness_jain_ratio",
        "Jain's index of served over entitled shares; 1 is equal.",
        (),
        [] if index is None else [((), index)],
    )


def alarms(found: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the number of alarms by kind; 0 for a kind without one, so that alerts have a series."""
    yield _gauge(
        "alarms_open",
        "Alarms that are open or acknowledged.",
        ("kind",),
        [((kind,), found.get(kind, 0)) for kind in ALARM_KINDS],
    )


def storage(
    journal: RowsJournal, limit_bytes: int, ledger: RowsLedger, lease_over: bool
) -> Iterator[Metric]:
    """Yield the sizes of the journal, and how far the ledger is behind it."""
    kept, unsynced = journal.sizes()
    yield _one("journal_bytes", "Bytes of the journal on disk.", kept)
    yield _one("journal_limit_bytes", "Bytes at which new calls are rejected.", limit_bytes)
    yield _one("journal_unsynced_bytes", "Bytes of entries that are not on disk yet.", unsynced)
    yield _one(
        "ledger_lag_bytes",
        "Bytes of the journal that are not in the database yet.",
        ledger.lag_bytes(),
    )
    yield _one(
        "ledger_waiting_seconds",
        "Time for which the database has accepted no rows; 0 while it does.",
        ledger.waiting_s(),
    )
    yield _one(
        "ledger_rejected_rows",
        "Rows that the database rejected, set aside in the journal's folder.",
        ledger.rejected_rows,
    )
    yield _one(
        "database_lease_over", "1 while the lease of the database is over: no calls.", lease_over
    )


def order(role: Role, found: EventOrder) -> Iterator[Metric]:
    """Yield the role of this server, whether it speaks, and how far it is behind the order of calls.

    One that is alone speaks, and is never behind.
    """
    yield _gauge("role_info", "Role of this server; the value is 1.", ("role",), [((role,), 1)])
    yield _one(
        "speaks",
        "1 if this server reports workers and writes rows, for all that share its order of calls.",
        found.speaks,
    )
    yield _one(
        "log_lag_seconds",
        "Time since this server has read a tick of the log that servers share; 0 if it is alone.",
        found.lag_s,
    )


def jobs(states: Iterable[JobState] | None) -> Iterator[Metric]:
    """Yield the background jobs; None: the database did not answer."""
    yield _one("database_up", "1 if the database answered the scrape.", states is not None)
    known = [state for state in states or () if state.name in JOBS]
    yield _gauge(
        "job_failures",
        "Passes of the job in a row that failed.",
        ("job",),
        [((state.name,), state.failures) for state in known],
    )
    yield _gauge(
        "job_dead",
        "1 for a job that failed too often and waits for an operator.",
        ("job",),
        [((state.name,), state.dead_at is not None) for state in known],
    )
    yield _gauge(
        "job_last_success_timestamp_seconds",
        "Time of the job's last successful pass, to the minute.",
        ("job",),
        [
            ((state.name,), state.succeeded_at.timestamp())
            for state in known
            if state.succeeded_at is not None
        ],
    )


def spans(counts: SpanCounts | None) -> Iterator[Metric]:
    """Yield the spans of traced calls; None: calls are not traced."""
    family = CounterMetricFamily(
        "fairserve_trace_spans",
        "Sampled spans: exported, failed at the collector, or dropped because the queue was full.",
        labels=("outcome",),
    )
    for outcome, value in (counts or SpanCounts())._asdict().items():
        family.add_metric([outcome], value)
    yield family


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fairserve_{name}", text, float(value))


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(f"fairserve_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family
