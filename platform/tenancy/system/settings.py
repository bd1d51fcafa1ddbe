"""Settings of the system, which throttles, orders and places calls."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.base.settings import RoomSettings, empty_is_none


class TuningSettings(RoomSettings):
    """The system in force unless an operator has set another one, with its options."""

    system: str = Field(
        "fairserve",
        description="System that throttles, orders and places calls: a name of "
        "fairserve.scheduling.registry.SYSTEMS. A setting made through "
        "/admin/throttling takes precedence.",
    )
    system_options: Annotated[dict[str, Any], NoDecode] = Field(
        default_factory=dict,
        description="Options of the system's policies, such as feeder.locality_slack=4: a JSON "
        "object, or pairs separated by commas; on the command line --set key=value, repeatable.",
        json_schema_extra={"flag": "--set", "default_text": "none"},
    )
    local_scheduler: str = Field(
        "",
        description="Scheduler inside the embedded workers, a name of "
        "fairserve.scheduling.registry.LOCAL_SCHEDULERS. Empty: that of the system.",
    )
    overload_high: float = Field(
        2.0,
        gt=0,
        le=1000,
        description="Demand over KV capacity at which the workers count as overloaded.",
    )
    overload_low: float = Field(
        1.2,
        gt=0,
        le=1000,
        description="Demand over KV capacity at which an overload ends; at most overload_high.",
    )
    feed_window: Annotated[float | None, BeforeValidator(empty_is_none)] = Field(
        None,
        gt=0,
        le=1,
        description="Share of a worker's KV capacity that may be queued at it or on its way, in "
        "systems that have a feed window. Empty: the system's own.",
    )
    immunity_factor: float = Field(
        2.0,
        ge=1,
        le=1000,
        description="Multiple of the calls or tokens of the app's longest usual run above which a "
        "run is no longer immune to throttling.",
    )

    @field_validator("system_options", mode="before")
    @classmethod
    def _parse_options(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text.startswith("{"):
            return json.loads(text)
        return parse_options(part for part in text.split(",") if part.strip())

    @model_validator(mode="after")
    def _check_watermarks(self) -> Self:
        if self.overload_low > self.overload_high:
            raise ValueError("overload_low must be at most overload_high")
        return self
