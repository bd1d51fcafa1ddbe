"""Settings of what is done in the background."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from fairserve.platform.server.settings_exports import ExportSettings


class BackgroundSettings(ExportSettings):
    """A part of :class:`fairserve.platform.server.settings.Settings`."""

    redis_url: str = Field(
        "",
        validation_alias=AliasChoices("FAIRSERVE_REDIS_URL", "REDIS_URL"),
        repr=False,
        description="Redis, through which Celery's workers get background jobs.",
    )
    background_jobs: Literal["auto", "here", "celery"] = Field(
        "auto",
        description="Who does what is done in the background: the server itself (here), or the "
        "processes of `fairserve jobs worker` and `fairserve jobs beat` (celery). auto: celery where "
        "there is a redis_url.",
    )
    profile_learning: bool = Field(
        True,
        description="Learn the token profiles of apps from what their calls use. Off: what an app's "
        "owner declared holds, as in the paper.",
    )
    profile_learning_interval_s: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="How often apps whose profile is not learned yet are looked at; others every ten "
        "minutes at most.",
    )
    profile_window_days: float = Field(
        14.0, gt=0, le=365, description="Calls of the last days that a profile is learned from."
    )
    profile_learned_after: int = Field(
        100,
        ge=20,
        le=1_000_000,
        description="Calls of a stage, and interactions, after which what was declared of them counts "
        "no longer.",
    )
    profile_max_growth_per_day: float = Field(
        2.0,
        ge=1,
        description="How many times larger a learned profile may become in a day; inf is no bound. It "
        "falls at once.",
    )
    profile_believed_tokens: float = Field(
        4800.0,
        gt=0,
        description="A typical call of which nothing but its owner's word is known weighs at most so "
        "many weighted tokens; inf believes every word.",
    )

    @model_validator(mode="after")
    def _check_jobs(self) -> Self:
        if self.background_jobs == "celery" and not self.redis_url:
            raise ValueError("background_jobs celery needs a redis_url")
        if self.jobs_on_celery and find_spec("celery") is None:
            raise ValueError(
                "with a redis_url background jobs are left to Celery, which needs: pip install"
                " 'fairserve[redis]'; or set background_jobs to here"
            )
        return self

    @property
    def jobs_on_celery(self) -> bool:
        """Whether background jobs are done by Celery's workers."""
        wanted = self.background_jobs
        return bool(self.redis_url) if wanted == "auto" else wanted == "celery"
