"""Bodies of ``/v1/apps/{app_id}/profile``, and of an operator's change.

Answers are read from attributes of the objects that they describe.
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
    """A stage of the profile that holds."""

    cached_tokens: float
    """Prompt tokens that calls at this stage had cached; 0 where none were seen."""


class ProfileInForce(ProfileOut):
    """The profile that holds."""

    stages: list[StageInForce]  # type: ignore[assignment]  # each is a StageOut
    agents: dict[str, list[StageOut]]
    """Expected tokens of the calls of named agents; their output is predicted from it."""
    seen_stages: int
    """So many of the first stages are as calls have shown."""
    believed_tokens: float | None
    """A typical call at a later stage weighs at most so many weighted tokens; null: as it is."""
    p99_calls: float | None
    """99th percentile of the calls of an interaction; null while fewer than 50 have ended."""
    p99_tokens: float | None
    """99th percentile of the tokens of an interaction; null while fewer than 50 have ended."""


class ProfileVersionOut(BaseModel):
    """A profile that held from ``since`` on, and why. Version 0 was never stored."""

    version: int
    since: datetime
    source: ProfileSource
    reason: str
    author: str
    profile: ProfileInForce


class SpreadOut(BaseModel):
    """Spread of values, recent ones weighing more."""

    expected: float
    """The mean, with values beyond the 98th percentile counted as that."""
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
    """Those of which enough calls were seen, and no later ones."""
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
    """Share of the calls that generated between half and one and a half times the prediction."""


class AppProfileOut(BaseModel):
    """An app's profile: which one holds and why, what was declared, what was seen."""

    app_id: str
    mode: ProfileMode
    in_force: ProfileVersionOut
    declared: ProfileOut
    seen: Seen
    prediction: PredictionOut | None
    """None if no call with a prediction has completed."""


class ProfileModeBody(Strict):
    """Which profile holds from now on: ``learned``; ``declared``, its owner's word, all of it believed;
    or ``pinned``: the one given here, or without one that which holds now.
    """

    mode: ProfileMode
    profile: ProfileBody | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.profile is not None and self.mode != "pinned":
            raise FieldError("profile", "a profile is given with mode pinned only")
        return self
