"""The API's description of bodies that endpoints read themselves, without FastAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def described_body(body: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return a route's ``openapi_extra`` that describes its JSON body."""
    content = {"application/json": {"schema": _inlined(body)}}
    return {"requestBody": {"required": required, "content": content}}


def _inlined(body: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a body without references, which would need a place of their own."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolved(value: Any) -> Any:
        if isinstance(value, list):
            return [resolved(each) for each in value]
        if not isinstance(value, dict):
            return value
        if (name := value.get("$ref")) is not None:
            return resolved(definitions[name.rpartition("/")[2]])
        # The mapping of a discriminator refers to definitions, too.
        return {key: resolved(each) for key, each in value.items() if key != "discriminator"}

    inlined: dict[str, Any] = resolved(schema)
    return inlined
