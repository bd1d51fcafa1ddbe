"""Bodies of ``/v1/apps/{app_id}/profile`` and ``/admin/apps/{app_id}/profile``.

Responses are read from attributes of the objects that they describe.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import BaseModel, model_validator

from fairserve.platform.db.identity import ProfileMode
from fairserve.platform.db.profiles import ProfileSource
from fairserve.platform.db.schemas import FieldError, Strict
from fairserve.platform.tenancy.apps.schemas import ProfileBody, ProfileOut, StageOut


class StageInForce(StageOut):
    """A stage of the profile in force."""

    cached_tokens: float
    """Expected cached prompt tokens of calls at this stage; 0 if none were observed."""


class ProfileInForce(ProfileOut):
    """The profile in force."""

    stages: list[StageInForce]  # type: ignore[assignment]  # each is a StageOut
    agents: dict[str, list[StageOut]]
    """Expected tokens of calls by named agents, from which their output is predicted."""
    seen_stages: int
    """Number of first stages that were learned from calls."""
    believed_tokens: float | None
    """Upper bound on the weighted tokens of a typical call at a later stage; null is no bound."""
    p99_calls: float | None
    """99th percentile of the calls of an interaction; null while fewer than 50 have ended."""
    p99_tokens: float | None
    """99th percentile of the tokens of an interaction; null while fewer than 50 have ended."""


class ProfileVersionOut(BaseModel):
    """A profile in force from ``since``, with the reason. Version 0 was never stored."""

    version: int
    since: datetime
    source: ProfileSource
    reason: str
    author: str
    profile: ProfileInForce


class SpreadOut(BaseModel):
    """Statistics of a value; recent values have a higher weight."""

    expected: float
    """Mean with values clipped at the 98th percentile."""
    median: float
    p90: float


class StageSeen(BaseModel):
    """Tokens of calls at a stage."""

    calls: int
    input_tokens: SpreadOut
    system_tokens: SpreadOut
    output_tokens: SpreadOut
    cached_tokens: SpreadOut


class Seen(BaseModel):
    """Tokens that the app's recent calls used."""

    calls: int
    interactions: int
    """Interactions that have ended."""
    stages: list[StageSeen]
    """Leading stages with enough observed calls."""
    agents: dict[str, list[StageSeen]]
    calls_per_interaction: SpreadOut | None


class PredictionOut(BaseModel):
    """Error of the predicted output of the most recent completed calls."""

    calls: int
    mean_output_tokens: float
    mean_error_tokens: float
    """Mean of predicted minus generated tokens."""
    mean_absolute_error_tokens: float
    within_half: float
    """Share of calls with an output between 0.5 and 1.5 times the prediction."""


class AppProfileOut(BaseModel):
    """An app's profile: in force with its reason, declared, and observed."""

    app_id: str
    mode: ProfileMode
    in_force: ProfileVersionOut
    declared: ProfileOut
    seen: Seen
    prediction: PredictionOut | None
    """None if no call with a prediction has completed."""


class ProfileModeBody(Strict):
    """Source of the profile in force: ``learned``; ``declared``, which trusts all declared values; or
    ``pinned``: the given profile, or the current one if none is given.
    """

    mode: ProfileMode
    profile: ProfileBody | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.profile is not None and self.mode != "pinned":
            raise FieldError("profile", "a profile is allowed only with mode pinned")
        return self
