"""Options of completions, responses, programs, files and batches, derived from the settings."""

from __future__ import annotations

from datetime import timedelta

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.serving.batches.execution import (
    BatchExecutionOptions as BatchExecutionOptions,
)
from fairserve.platform.serving.batches.service import BatchOptions
from fairserve.platform.serving.decision.check import CheckOptions
from fairserve.platform.serving.files.service import FileOptions
from fairserve.platform.serving.programs.execution import ProgramExecutionOptions
from fairserve.platform.serving.programs.service import ProgramOptions
from fairserve.platform.serving.responses.options import StoreOptions
from fairserve.platform.serving.responses.service import BackgroundOptions
from fairserve.platform.serving.settings import ServingSettings


def check_options(settings: ServingSettings, *, infer_parents: bool) -> CheckOptions:
    """Return the settings of the decision service."""
    return CheckOptions(
        default_max_tokens=settings.default_max_tokens,
        cache_isolation=settings.cache_isolation,
        infer_parents=infer_parents,
        run_rules=settings.default_run_rules,
    )


def program_options(
    settings: ServingSettings, tenant_share: float, learning: LearningOptions | None
) -> ProgramOptions:
    """Return the bounds of programs."""
    return ProgramOptions(
        max_live=settings.program_max_live,
        tenant_share=tenant_share,
        max_live_per_app=settings.program_max_live_per_app,
        max_bytes=settings.program_max_bytes,
        learning=learning,
        execution=ProgramExecutionOptions(
            parallel_calls=settings.program_parallel_calls,
            time_limit_s=settings.program_time_limit_s,
        ),
    )


def store_options(settings: ServingSettings) -> StoreOptions:
    """Return the bounds of stored responses."""
    return StoreOptions(
        response_store=settings.response_store,
        response_max_per_app=settings.response_max_per_app,
        response_max_bytes_per_app=settings.response_max_bytes_per_app,
        response_max_per_tenant=settings.response_max_per_tenant,
        response_max_bytes_per_tenant=settings.response_max_bytes_per_tenant,
    )


def background_options(settings: ServingSettings, tenant_share: float) -> BackgroundOptions:
    """Return the bounds of responses in the background."""
    return BackgroundOptions(
        response_max_background=settings.response_max_background,
        tenant_share=tenant_share,
        response_max_background_per_app=settings.response_max_background_per_app,
    )


def file_options(settings: ServingSettings) -> FileOptions:
    """Return the bounds of files."""
    return FileOptions(
        max_bytes=settings.file_max_bytes,
        max_per_tenant=settings.file_max_per_tenant,
        max_bytes_per_tenant=settings.file_max_bytes_per_tenant,
        max_bytes_in_all=settings.file_max_bytes_in_all,
        retention=timedelta(days=settings.file_retention_days),
    )


def batch_options(settings: ServingSettings, tenant_share: float) -> BatchOptions:
    """Return the bounds of batches."""
    return BatchOptions(
        max_live=settings.batch_max_live,
        tenant_share=tenant_share,
        max_unfinished_per_app=settings.batch_max_unfinished_per_app,
        memory_bytes=settings.batch_memory_bytes,
        execution=BatchExecutionOptions(
            max_lines=settings.batch_max_lines,
            max_line_bytes=settings.batch_max_line_bytes,
            parallel_calls=settings.batch_parallel_calls,
        ),
    )
