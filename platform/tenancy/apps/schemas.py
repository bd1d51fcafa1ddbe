"""Bodies of ``/v1/apps``: token profile by stage, overload limits, quotas, and warnings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from fairserve.interactions.profiles.profile import MAX_STAGES, AppProfile, StageProfile
from fairserve.interactions.run_rules import RUN_RULES, RunRule, normal_rules
from fairserve.platform.db.identity import ProfileMode
from fairserve.platform.db.schemas import KeyOut, Managed, Name, PriorityWeight, Strict, Weight
from fairserve.platform.tenancy.apps.origins import CorsOrigins
from fairserve.platform.tenancy.apps.user_headers import UserHeaders
from fairserve.platform.tenancy.quotas.schemas import ContractBody, ContractOut


def _ordered(rules: list[RunRule]) -> list[RunRule]:
    return list(normal_rules(rules))


RunRules = Annotated[list[RunRule], Field(max_length=len(RUN_RULES)), AfterValidator(_ordered)]


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
    """Expected tokens of an app's runs by stage, from 1; later stages repeat the last one."""

    stages: list[StageBody] = Field(min_length=1, max_length=MAX_STAGES)
    calls_per_interaction: float = 1.0
    idle_timeout_s: float | None = None
    """Seconds; null is the server's ``interaction_idle_timeout_s``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.profile(300.0)
        return self

    def profile(self, default_idle_timeout_s: float) -> AppProfile:
        """Return the profile as the core's type."""
        return AppProfile(
            stages=tuple(StageProfile(**stage.model_dump()) for stage in self.stages),
            calls_per_interaction=self.calls_per_interaction,
            idle_timeout_s=(
                default_idle_timeout_s if self.idle_timeout_s is None else self.idle_timeout_s
            ),
        )


class LimitsBody(Strict):
    """Limits of calls and new users per minute under overload; null or absent is no limit."""

    user_rpm: int | None = Field(None, ge=1, le=1_000_000)
    app_rpm: int | None = Field(None, ge=1, le=1_000_000)
    new_users_per_minute: int | None = Field(None, ge=1, le=1_000_000)
    """Limit of users without a call in the last day. Null is the default: 30 with a ``user_rpm`` and
    without an ``app_rpm``, else no limit.
    """


class AppSettings(Managed):
    """Settings of a new app that can be changed later."""

    weight: Weight | None = None
    """Weight, for admin keys only: it raises the tenant's share."""
    priority_weight: PriorityWeight | None = None
    """Factor on the service of its calls with the ``service_tier`` ``priority``, for admin keys only;
    null: it may have none."""
    contract: ContractBody | None = None
    """Limits of the app as a whole."""
    user_contract: ContractBody | None = None
    """Limits of each of its users."""
    user_headers: UserHeaders | None = None
    """Headers that name the end user of a call whose body names none; null is ``x-user-id``."""
    cors_origins: CorsOrigins | None = None
    """Origins of the pages in browsers that may call with the app's keys; null is none."""
    run_rules: RunRules | None = None
    """Rules that assign calls to runs, in any order; null is the server's, and without any each call is
    a run."""


class AppCreate(AppSettings):
    """A new app."""

    name: Name
    profile: ProfileBody
    limits: LimitsBody = LimitsBody()


class AppPatch(AppSettings):
    """Changes of an app. A profile replaces the old one; an omitted limit is unchanged, and a null
    contract removes all its limits. A list replaces the old one, and null is its default.
    """

    name: Name | None = None
    profile: ProfileBody | None = None
    limits: LimitsBody | None = None
    suspended: bool | None = None


class StageOut(BaseModel):
    """A stage of a profile."""

    input_tokens: float
    system_tokens: float
    output_tokens: float


class ProfileOut(BaseModel):
    """A profile."""

    stages: list[StageOut]
    calls_per_interaction: float
    idle_timeout_s: float


class LimitsOut(BaseModel):
    """The limits in force."""

    user_rpm: int | None
    app_rpm: int | None
    new_users_per_minute: int | None
    """The configured value."""
    new_users_in_force: int | None
    """The configured value, or the default."""


class AppOut(BaseModel):
    """An app."""

    id: str
    tenant_id: str
    name: str
    profile: ProfileOut
    """The declared profile."""
    profile_mode: ProfileMode
    """Source of the profile in force, which ``/v1/apps/{app_id}/profile`` shows."""
    limits: LimitsOut
    weight: float
    priority_weight: float | None
    contract: ContractOut
    user_contract: ContractOut
    user_headers: list[str]
    """Headers that name the end user of a call whose body names none, in order."""
    cors_origins: list[str]
    """Origins of the pages in browsers that may call with the app's keys."""
    run_rules: list[RunRule] | None
    """Rules that assign calls to runs, in their order; null is the server's."""
    managed_by: str | None
    created_at: datetime
    suspended_at: datetime | None
    deleted_at: datetime | None
    purge_after: datetime | None
    """Time until which a deleted app can be restored."""
    warnings: list[str]


class AppCreated(AppOut):
    """A new app with its key, shown once."""

    key: KeyOut
    api_key: str = Field(repr=False)
