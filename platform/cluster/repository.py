"""Queries on the workers and aliases that came through the API."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.engine.base import KvEndpoints
from fairserve.platform.cluster.fleet import FleetPart
from fairserve.platform.cluster.schemas import targets_of
from fairserve.platform.cluster.worker_spec import WorkerKind, WorkerSpec
from fairserve.platform.db.fleet import FleetAlias, FleetWorker


def load_part(session: Session) -> FleetPart:
    """All of them, workers in the order in which they joined."""
    rows = session.scalars(select(FleetWorker).order_by(FleetWorker.created_at, FleetWorker.id))
    workers = list(rows)
    aliases = session.scalars(select(FleetAlias).order_by(FleetAlias.name))
    return FleetPart(
        workers=tuple(spec_of(row) for row in workers),
        aliases={row.name: targets_of(row.targets) for row in aliases},
        tokenizers={row.model: row.tokenizer for row in workers if row.model and row.tokenizer},
        drained=frozenset(row.id for row in workers if row.drained),
    )


def spec_of(row: FleetWorker) -> WorkerSpec:
    """A stored worker for the pool."""
    kind: WorkerKind = "openai" if row.kind == "openai" else "vllm"
    endpoints = KvEndpoints(row.kv_events, row.kv_replay or "") if row.kv_events else None
    return WorkerSpec(
        worker_id=row.id,
        url=row.url,
        kind=kind,
        model=row.model or "",
        kv_events=endpoints,
        kv_tokens=row.kv_tokens,
        concurrency=row.concurrency,
        api_key_env=row.api_key_env or "",
    )


def count_workers(session: Session) -> int:
    """How many workers are stored."""
    return session.scalar(select(func.count(FleetWorker.id))) or 0


def count_aliases(session: Session) -> int:
    """How many aliases are stored."""
    return session.scalar(select(func.count(FleetAlias.name))) or 0
