"""Options of completions, responses and programs, derived from the settings."""

from __future__ import annotations

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.serving.decision.check import CheckOptions
from fairserve.platform.serving.programs.execution import ExecutionOptions
from fairserve.platform.serving.programs.service import ProgramOptions
from fairserve.platform.serving.responses.bounds import StoreOptions
from fairserve.platform.serving.responses.service import BackgroundOptions
from fairserve.platform.serving.settings import ServingSettings


def check_options(settings: ServingSettings, *, infer_parents: bool) -> CheckOptions:
    """Return the settings of the decision service."""
    return CheckOptions(
        default_max_tokens=settings.default_max_tokens,
        cache_isolation=settings.cache_isolation,
        infer_parents=infer_parents,
        run_from_traceparent=settings.run_from_traceparent,
    )


def program_options(settings: ServingSettings, learning: LearningOptions | None) -> ProgramOptions:
    """Return the bounds of programs."""
    return ProgramOptions(
        max_live=settings.program_max_live,
        max_live_per_app=settings.program_max_live_per_app,
        max_bytes=settings.program_max_bytes,
        learning=learning,
        execution=ExecutionOptions(
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
    )


def background_options(settings: ServingSettings) -> BackgroundOptions:
    """Return the bounds of responses in the background."""
    return BackgroundOptions(
        response_max_background=settings.response_max_background,
        response_max_background_per_app=settings.response_max_background_per_app,
    )
