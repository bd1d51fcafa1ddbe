"""Settings of the system, which throttles, orders and places calls."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.base.settings import RoomSettings


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
        description="Parameters of the system, such as high_watermark=3 (docs/guide/settings.md): a "
        "JSON object, or pairs separated by commas; on the command line --set key=value, repeatable.",
        json_schema_extra={"flag": "--set", "default_text": "none"},
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
