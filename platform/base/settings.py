"""Base class of the settings that each package of the platform declares.

A field ``max_body_bytes`` is read from ``FAIRSERVE_MAX_BODY_BYTES`` unless the constructor gets a value.
The server composes these settings (:mod:`fairserve.platform.server.settings`) and derives flags and
documentation from the same fields.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class RoomSettings(BaseSettings):
    """The settings of one package. Immutable; unknown names are rejected, errors show no values."""

    model_config = SettingsConfigDict(
        env_prefix="FAIRSERVE_",
        frozen=True,
        extra="forbid",
        validate_default=False,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


def parse_list(value: Any) -> Any:
    """Return the items of a text: a JSON array, or items separated by commas. Keep other values."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return json.loads(text)
    return tuple(part.strip() for part in text.split(",")) if text else ()


def empty_is_none(value: Any) -> Any:
    """Return None for an empty text: an empty environment variable unsets a setting."""
    return None if value == "" else value


def word_of_switch(value: Any) -> Any:
    """Return "on" or "off" for a truth value, as which YAML reads these words. Keep other values."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), value)


TextList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_list)]
"""A list of texts; one text with commas is accepted as well."""
