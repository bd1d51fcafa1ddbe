"""What ``/v1/apps/{app_id}/profile`` says, and what an operator sets.

Answers are read from the attributes of what they tell of: profiles, their versions, and figures.
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
    """What the calls of agents that are named are expected to use; it foretells their output."""
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
    """Where values lie, recent ones weighing more."""

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
    """What the app's recent calls have used."""

    calls: int
    interactions: int
    """That have ended."""
    stages: list[StageSeen]
    """Those of which enough calls were seen, and no later ones."""
    agents: dict[str, list[StageSeen]]
    calls_per_interaction: SpreadOut | None


class PredictionOut(BaseModel):
    """How good the output was foretold of completed calls, the most recent ones."""

    calls: int
    mean_output_tokens: float
    mean_error_tokens: float
    """Foretold less generated."""
    mean_absolute_error_tokens: float
    within_half: float
    """Share of the calls that generated between half and one and a half times what was foretold."""


class AppProfileOut(BaseModel):
    """An app's profile: which one holds and why, what was declared, what was seen."""

    app_id: str
    mode: ProfileMode
    in_force: ProfileVersionOut
    declared: ProfileOut
    seen: Seen
    prediction: PredictionOut | None
    """None where no call of which anything was foretold has completed."""


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
