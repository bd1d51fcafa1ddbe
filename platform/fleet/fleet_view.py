"""Views of the fleet for the admin API: desired and current state."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict, replace
from typing import Any

from fairserve.platform.db.schemas import Page, Paging
from fairserve.platform.fleet.fleet import DesiredAlias, DesiredWorker
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.parts import FleetParts
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.schemas import AliasOut, WorkerOut, WorkerQuery
from fairserve.platform.fleet.worker_spec import WorkerSpec


async def workers_out(parts: FleetParts) -> list[WorkerOut]:
    """Return all workers by id, including leaving ones. Call it on the event loop."""
    fleet, pool, pools, models = parts.running, parts.pool, parts.model_pools, parts.models
    seen = {worker.worker_id: worker for worker in (await parts.control.cluster()).workers}
    here = {member.worker_id: member for member in pool.members()}
    found = []
    for worker_id in sorted({*fleet.desired.workers, *fleet.present}):
        wanted, there = fleet.desired.workers.get(worker_id), fleet.present.get(worker_id)
        if wanted is not None:
            worker = replace(wanted, spec=spec_of(fleet, wanted))
        else:
            assert there is not None
            worker = DesiredWorker(there.spec, there.source)
        served = pools.models_of(worker_id)
        member = here.get(worker_id)
        reason = member.reason if member is not None else ""
        state = state_of(fleet, pool, worker_id)
        if state == "serving" and (loading := pools.loading_of(worker_id)):
            state, reason = "joining", loading
        known = seen.get(worker_id)
        found.append(
            worker_out(
                worker,
                state,
                problem=pools.problem_of(worker_id) or reason,
                model=served[0] if served else None,
                calls=known.calls if known is not None else 0,
                drain_cost_tokens=known.drain_cost_tokens if known is not None else None,
                note=drain_note(models, worker_id) if worker.drained else None,
            )
        )
    return found


async def workers_page(parts: FleetParts, query: WorkerQuery) -> Page[WorkerOut]:
    """Return a page of the workers, of one model or all, in the order of the query."""
    found = await workers_out(parts)
    if query.model is not None:
        found = [worker for worker in found if worker.model == query.model]
    if query.sort == "drain_cost":
        found.sort(key=lambda worker: (worker.drain_cost_tokens or 0, worker.calls))
    return Page.of(found[query.offset : query.offset + query.limit], len(found), query)


def member_views(pool: WorkerPool, pools: ModelPools) -> list[dict[str, Any]]:
    """Return the members of the pool; a member is joining until its model is served."""
    views = pool.views()
    for view in views:
        if view["state"] == "ready" and (loading := pools.loading_of(view["worker_id"])):
            view |= {"state": "joining", "reason": loading, "ready": False}
    return views


def spec_of(fleet: RunningFleet, wanted: DesiredWorker) -> WorkerSpec:
    """Return the worker's specification; for an embedded worker with the port of its process."""
    there = fleet.present.get(wanted.spec.worker_id)
    return there.spec if wanted.source == "embedded" and there is not None else wanted.spec


def state_of(fleet: RunningFleet, pool: Container[str], worker_id: str) -> str:
    """Return the state of :class:`~fairserve.platform.fleet.schemas.WorkerOut`. From any thread."""
    wanted, there = fleet.desired.workers.get(worker_id), fleet.present.get(worker_id)
    if wanted is None:
        return "leaving"
    if there is not None and there.draining and not there.idle:
        return "draining"
    if wanted.drained:
        return "drained"
    return "serving" if worker_id in pool else "joining"


def drain_note(models: Models, worker_id: str) -> str | None:
    """Return the effect of draining this worker; None if others replace it. From any thread."""
    alone = models.models_without(worker_id)
    if alone:
        names = ", ".join(map(repr, alone))
        return f"no other worker serves {names}: its calls wait, and get 503 after the maximum wait"
    return None if models.ready() else "no worker serves: calls get 503"


def worker_out(
    worker: DesiredWorker,
    state: str,
    *,
    problem: str = "",
    model: str | None = None,
    calls: int = 0,
    drain_cost_tokens: int | None = None,
    note: str | None = None,
) -> WorkerOut:
    """Return the view of one worker. ``model`` is its reported model."""
    spec, drain = worker.spec, worker.drain
    return WorkerOut(
        id=spec.worker_id,
        source=worker.source,
        state=state,
        problem=problem,
        url=spec.url,
        kind=spec.kind,
        model=model or spec.model or None,
        configured_model=spec.model or None,
        tokenizer=worker.stored.tokenizer,
        kv_events=",".join(each.events for each in spec.kv_events) or None,
        kv_replay=",".join(each.replay for each in spec.kv_events if each.replay) or None,
        kv_tokens=spec.kv_tokens,
        concurrency=spec.concurrency,
        api_key_env=spec.api_key_env or None,
        calls=calls,
        drain_cost_tokens=drain_cost_tokens,
        drained_by=drain.by if drain is not None else None,
        drained_at=drain.at if drain is not None else None,
        managed_by=worker.stored.managed_by,
        note=note,
    )


def alias_out(name: str, alias: DesiredAlias, ready: set[str]) -> AliasOut:
    """Return the view of an alias; ``ready`` are the models with a worker."""
    return AliasOut(
        name=name,
        source=alias.source,
        target=dict(alias.targets),
        managed_by=alias.managed_by,
        serving=[target for target in alias.targets if target in ready],
    )


def models_out(
    models: Models, pools: ModelPools, seen: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return every model with its workers; ``seen`` is control's view of each.

    ``ready`` is false without a worker, and while the tokenizer is being loaded.
    """
    served = {model.worker_name: model for model in models.served()}
    known = {view["model"]: view for view in seen}
    return [
        {
            **known.get(name, {}),
            "model": name,
            "ready": models.workers_up(name) > 0,
            "workers": len(workers),
            "workers_up": models.workers_up(name),
            "tasks": sorted(served[name].tasks) if name in served else [],
            "context_tokens": served[name].context_tokens if name in served else None,
            "exact_tokens": served[name].reader.exact if name in served else None,
            "tokenizer": served[name].reader.source if name in served else None,
        }
        for name, workers in pools.workers().items()
    ]


async def cluster_out(parts: FleetParts) -> dict[str, Any]:
    """Return workers, models, queue and load from control's current view."""
    view = asdict(await parts.control.cluster())
    known = {worker["worker_id"]: worker for worker in view.pop("workers")}
    seen_models = view.pop("models")
    members = member_views(parts.pool, parts.model_pools)
    supervisor, watch = parts.supervisor, parts.watch
    return {
        **view,
        "workers": [{**member, **known.get(member["worker_id"], {})} for member in members],
        "models": models_out(parts.models, parts.model_pools, seen_models),
        "fleet_file": {"path": str(watch.path), "problem": watch.problem} if watch else None,
        "processes": [asdict(each) for each in supervisor.processes()] if supervisor else [],
    }


def aliases_page(parts: FleetParts, paging: Paging) -> Page[AliasOut]:
    """Return a page of the aliases of all sources, by name."""
    ready = set(parts.models.ready())
    found = sorted(parts.running.desired.aliases.items())
    items = [
        alias_out(name, alias, ready)
        for name, alias in found[paging.offset : paging.offset + paging.limit]
    ]
    return Page.of(items, len(found), paging)
