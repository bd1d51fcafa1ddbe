"""What the settings say about each part of the server."""

from __future__ import annotations

from fairserve.engine.wire.base import KvEndpoints
from fairserve.interactions.profile_learning import LearningOptions
from fairserve.platform.control.lifecycle import ControlOptions
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.completions.prepared import PrepareOptions
from fairserve.platform.serving.programs.execution import ExecutionOptions
from fairserve.platform.serving.programs.service import ProgramOptions
from fairserve.scheduling.admission import AdmissionOptions


def control_options(settings: Settings) -> ControlOptions:
    """Bounds of control."""
    return ControlOptions(
        max_queue_wait_s=settings.max_queue_wait_s,
        max_queued_calls=settings.max_queued_calls,
        tenant_share=settings.max_tenant_share,
        user_share=settings.max_user_share,
        lease_s=settings.lease_s,
        infer_parents=settings.infer_parents,
        reopen_grace_s=settings.interaction_reopen_grace_s,
        admission=AdmissionOptions(
            contracts=settings.contract_limits,
            rates_cut_runs=settings.contract_rates_cut_runs,
            openings_per_minute=settings.user_openings_per_minute,
        ),
    )


def prepare_options(settings: Settings) -> PrepareOptions:
    """How requests are read."""
    return PrepareOptions(
        default_max_tokens=settings.default_max_tokens,
        cache_isolation=settings.cache_isolation,
        infer_parents=settings.infer_parents,
        run_from_traceparent=settings.run_from_traceparent,
    )


def program_options(settings: Settings) -> ProgramOptions:
    """Bounds of programs."""
    return ProgramOptions(
        max_live=settings.program_max_live,
        max_live_per_app=settings.program_max_live_per_app,
        max_bytes=settings.program_max_bytes,
        learning=learning_options(settings),
        execution=ExecutionOptions(
            parallel_calls=settings.program_parallel_calls,
            time_limit_s=settings.program_time_limit_s,
        ),
    )


def learning_options(settings: Settings) -> LearningOptions | None:
    """How profiles are learned; None: they are not."""
    if not settings.profile_learning:
        return None
    return LearningOptions(
        window_s=settings.profile_window_days * 86_400,
        learned_after=settings.profile_learned_after,
        max_growth_per_day=settings.profile_max_growth_per_day,
        believed_tokens=settings.profile_believed_tokens,
    )


def static_fleet(settings: Settings) -> FleetPart:
    """The workers of ``worker_urls``."""
    publishers = settings.worker_kv_events or ("",) * len(settings.worker_urls)
    return FleetPart(
        workers=tuple(
            WorkerSpec(f"w{number}", url, kv_events=KvEndpoints(*told.split()) if told else None)
            for number, (url, told) in enumerate(zip(settings.worker_urls, publishers, strict=True))
        )
    )
