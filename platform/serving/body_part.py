"""Base of the objects in the bodies of calls: strict, and null stands for an absent field.

Clients write every optional field, many of them as null, also fields that this server does not know.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from fairserve.platform.base.validation import with_one_unknown


class StrictPart(BaseModel):
    """An object without unknown fields and without conversions; its nulls are left out before."""

    model_config = ConfigDict(strict=True, extra="forbid")


class BodyPart(StrictPart):
    """An object that leaves out its nulls itself. Costs 3 microseconds more."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        return with_one_unknown(cls, without_nulls(value)) if isinstance(value, dict) else value


class MessagePart(BodyPart):
    """A message, a part of one, or an item, without the fields that are not listed.

    Clients send back what any server answered, and mark what they send for other servers.
    """

    model_config = ConfigDict(extra="ignore")


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in fields.items() if value is not None}
