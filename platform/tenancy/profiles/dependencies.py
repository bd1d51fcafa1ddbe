"""FastAPI dependencies of the endpoints and pages that show profiles."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.tenancy.settings import TenancySettings


def _options(request: Request) -> LearningOptions | None:
    settings: TenancySettings = request.app.state.settings.tenancy
    return settings.learning_options


Options = Annotated[LearningOptions | None, Depends(_options)]
"""Options of learned profiles; None if profiles are not learned."""
