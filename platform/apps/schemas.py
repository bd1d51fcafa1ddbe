"""Bodies of ``/v1/apps``: a token profile by stage, limits, and the warnings about them."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from fairserve.interactions.profile import AppProfile, StageProfile
from fairserve.platform.db.schemas import KeyOut, Name, Strict

MAX_STAGES = 64
MAX_GRACE_S = 30 * 86_400


class StageBody(Strict):
    """Expected tokens of one call at a stage."""

    input_tokens: float
    system_tokens: float = 0.0
    output_tokens: float

    @model_validator(mode="after")
    def _check(self) -> Self:
        StageProfile(**self.model_dump())
        return self


class ProfileBody(Strict):
    """What the runs of an app are expected to be; stage 1 first, later stages repeat the last."""

    stages: list[StageBody] = Field(min_length=1, max_length=MAX_STAGES)
    calls_per_interaction: float = 1.0
    idle_timeout_s: float | None = None
    """None takes the server's ``interaction_idle_timeout_s``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.profile(300.0)
        return self

    def profile(self, default_idle_timeout_s: float) -> AppProfile:
        """The profile as the core knows it."""
        return AppProfile(
            stages=tuple(StageProfile(**stage.model_dump()) for stage in self.stages),
            calls_per_interaction=self.calls_per_interaction,
            idle_timeout_s=(
                default_idle_timeout_s if self.idle_timeout_s is None else self.idle_timeout_s
            ),
        )


class LimitsBody(Strict):
    """Calls per minute; null or absent is no limit."""

    user_rpm: int | None = Field(None, ge=1, le=1_000_000)
    app_rpm: int | None = Field(None, ge=1, le=1_000_000)


class AppCreate(Strict):
    """A new app."""

    name: Name
    profile: ProfileBody
    limits: LimitsBody = LimitsBody()


class AppPatch(Strict):
    """Changes of an app. A profile replaces the old one; a limit that is left out stays."""

    name: Name | None = None
    profile: ProfileBody | None = None
    limits: LimitsBody | None = None


class KeyCreate(Strict):
    """A further key of an app."""

    expires_at: AwareDatetime | None = None


class KeyRotate(Strict):
    """``grace_s``: how long the old keys still work."""

    grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)


class StageOut(BaseModel):
    """A stage of a profile."""

    input_tokens: float
    system_tokens: float
    output_tokens: float


class ProfileOut(BaseModel):
    """The profile in force."""

    stages: list[StageOut]
    calls_per_interaction: float
    idle_timeout_s: float


class LimitsOut(BaseModel):
    """The limits in force."""

    user_rpm: int | None
    app_rpm: int | None


class AppOut(BaseModel):
    """An app."""

    id: str
    tenant_id: str
    name: str
    profile: ProfileOut
    limits: LimitsOut
    created_at: datetime
    warnings: list[str]


class AppCreated(AppOut):
    """A new app with its key, shown once."""

    key: KeyOut
    api_key: str = Field(repr=False)
