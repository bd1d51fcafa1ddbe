"""The list of models in Anthropic's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def message_model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of one model."""
    created = datetime.fromtimestamp(entry["created"], UTC)
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": entry["max_model_len"],
        "max_tokens": entry["max_model_len"],
    }


def message_models(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the list of all models, which is one page."""
    models = [message_model(entry) for entry in entries]
    return {
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
