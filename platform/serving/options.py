"""Options of completions, responses, programs, files and batches that follow from settings."""

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

TENANTS_OF_FILES = 16
"""Part of the total size of files that one tenant may have: one of this many."""


def check_options(settings: ServingSettings) -> CheckOptions:
    """Return the settings of the decision service."""
    return CheckOptions(
        default_max_tokens=settings.default_max_tokens, cache_isolation=settings.cache_isolation
    )


def program_options(
    settings: ServingSettings, tenant_share: float, learning: LearningOptions | None
) -> ProgramOptions:
    """Return the bounds of programs."""
    return ProgramOptions(
        tenant_share=tenant_share,
        learning=learning,
        execution=ProgramExecutionOptions(time_limit_s=settings.program_time_limit_s),
    )


def store_options(settings: ServingSettings) -> StoreOptions:
    """Return the bounds of stored responses."""
    return StoreOptions(response_store=settings.response_store)


def background_options(tenant_share: float, max_wait_s: float) -> BackgroundOptions:
    """Return the bounds of responses in the background."""
    return BackgroundOptions(tenant_share=tenant_share, max_wait_s=max_wait_s)


def file_options(settings: ServingSettings) -> FileOptions:
    """Return the bounds of files."""
    return FileOptions(
        max_bytes=settings.file_max_bytes,
        max_bytes_per_tenant=settings.file_max_bytes_in_all // TENANTS_OF_FILES,
        max_bytes_in_all=settings.file_max_bytes_in_all,
        retention=timedelta(days=settings.content_retention_days),
    )


def batch_options(settings: ServingSettings, tenant_share: float) -> BatchOptions:
    """Return the bounds of batches."""
    return BatchOptions(
        tenant_share=tenant_share,
        execution=BatchExecutionOptions(parallel_calls=settings.batch_parallel_calls),
    )
