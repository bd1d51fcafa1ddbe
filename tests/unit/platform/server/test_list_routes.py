"""Lists have one format: OpenAI's routes answer them under ``data``, all others under ``items``."""

from pathlib import Path

from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings

OF_OPENAI = {"/v1/models", "/v1/files", "/v1/batches"}
PARTS = {"/v1/interactions/{interaction_id}/graph"}
"""Routes whose pages are parts of one object, not a list."""


def test_lists_are_answered_under_items():
    openapi = create_app(Settings(data_dir=Path("unused")), None).openapi()
    lists = set()
    for path, methods in openapi["paths"].items():
        if "get" not in methods or path in OF_OPENAI | PARTS:
            continue
        fields = fields_of(openapi, methods["get"])
        assert "data" not in fields, path
        named = {each["name"] for each in methods["get"].get("parameters", ())}
        if "limit" in named or "items" in fields:
            lists.add(path)
            assert fields["items"]["type"] == "array", path
    assert {"/v1/interactions", "/admin/interactions", "/admin/jobs", "/v1/apps"} <= lists


def fields_of(openapi, operation):
    """Return the fields of the object that an operation answers."""
    content = operation["responses"]["200"].get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return openapi["components"]["schemas"].get(name, {}).get("properties", {})
