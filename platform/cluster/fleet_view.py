"""The fleet as the admin API shows it: what is wanted, beside what is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairserve.platform.cluster.fleet import Source
from fairserve.platform.cluster.model_pools import ModelPools
from fairserve.platform.cluster.pool import WorkerPool
from fairserve.platform.cluster.running_fleet import RunningFleet
from fairserve.platform.cluster.schemas import AliasOut, WorkerOut
from fairserve.platform.cluster.worker_spec import WorkerSpec
from fairserve.platform.completions.models import Models
from fairserve.platform.completions.splits import Targets


async def workers_out(state: Any) -> list[WorkerOut]:
    """All workers by id, those that are leaving included. On the event loop."""
    fleet: RunningFleet = state.fleet
    pool: WorkerPool = state.pool
    pools: ModelPools = state.model_pools
    calls = {worker.worker_id: worker.calls for worker in (await state.control.cluster()).workers}
    here = {member.worker_id: member for member in pool.members()}
    found = []
    for worker_id in sorted({*fleet.desired.workers, *fleet.present}):
        wanted, there = fleet.desired.workers.get(worker_id), fleet.present.get(worker_id)
        source: Source
        if wanted is not None:
            spec, source = wanted.spec, wanted.source
            if source == "embedded":
                spec = here[worker_id].spec if worker_id in here else spec
        else:
            assert there is not None
            spec, source = there.spec, there.source
        if wanted is None:
            state_name = "leaving"
        elif there is not None and there.draining:
            state_name = "draining"
        elif wanted.drained:
            state_name = "drained"
        else:
            state_name = "serving" if worker_id in pool else "joining"
        models = pools.models_of(worker_id)
        member = here.get(worker_id)
        reason = member.reason if member is not None else ""
        found.append(
            worker_out(
                spec,
                source,
                state_name,
                problem=pools.problem_of(worker_id) or reason,
                model=models[0] if models else None,
                calls=calls.get(worker_id, 0),
            )
        )
    return found


def worker_out(
    spec: WorkerSpec,
    source: Source,
    state: str,
    *,
    problem: str = "",
    model: str | None = None,
    calls: int = 0,
) -> WorkerOut:
    """One worker. ``model`` is what it told."""
    return WorkerOut(
        id=spec.worker_id,
        source=source,
        state=state,
        problem=problem,
        url=spec.url,
        kind=spec.kind,
        model=model or spec.model or None,
        kv_events=spec.kv_events.events if spec.kv_events else None,
        kv_replay=(spec.kv_events.replay or None) if spec.kv_events else None,
        kv_tokens=spec.kv_tokens,
        concurrency=spec.concurrency,
        api_key_env=spec.api_key_env or None,
        calls=calls,
    )


def alias_out(name: str, targets: Targets, source: Source, ready: set[str]) -> AliasOut:
    """One alias; ``ready`` are the models that have a worker."""
    serving = [target for target in targets if target in ready]
    return AliasOut(name=name, source=source, target=dict(targets), serving=serving)


def models_out(
    models: Models, pools: ModelPools, seen: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every model with its workers; ``seen`` is what control knows of each.

    ``ready`` is false for one without a worker, and while its tokenizer is being loaded.
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
            "context_tokens": served[name].context_tokens if name in served else None,
            "exact_tokens": served[name].reader.exact if name in served else None,
        }
        for name, workers in pools.workers().items()
    ]
