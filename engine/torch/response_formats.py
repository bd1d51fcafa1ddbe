"""From a request's JSON schema to a grammar, without holding up the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import orjson

from fairserve.engine.torch.openai_fields import RequestError
from fairserve.engine.torch.token_constraint import Grammar

if TYPE_CHECKING:
    from fairserve.engine.torch.json_mode import JsonMode

_FIELD = "response_format"
MAX_SCHEMA_BYTES = 64 * 1024


class ResponseFormats:
    """Compiles schemas for one model. JSON mode is loaded when somebody first asks for it."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Collection[int]) -> None:
        self._model = (tokenizer, vocabulary, end_ids)
        self._json_mode: JsonMode | None = None
        self._loading = threading.Lock()

    async def grammar(self, schema: dict[str, Any] | None) -> Grammar | None:
        """The grammar of a schema; None for none. Raises RequestError naming the field."""
        if schema is None:
            return None
        try:
            text = orjson.dumps(schema)
        except orjson.JSONEncodeError as error:
            raise RequestError(f"{_FIELD}: {error}", _FIELD) from error
        if len(text) > MAX_SCHEMA_BYTES:
            raise RequestError(
                f"{_FIELD} has a schema of {len(text)} bytes; allowed: {MAX_SCHEMA_BYTES}", _FIELD
            )
        return await asyncio.to_thread(self._compile, text.decode())

    def _compile(self, schema: str) -> Grammar:
        try:
            with self._loading:
                if self._json_mode is None:
                    from fairserve.engine.torch.json_mode import JsonMode

                    self._json_mode = JsonMode(*self._model)
        except (ImportError, ValueError) as error:
            reason = str(error)
            if isinstance(error, ImportError):
                reason = "its extra is not installed (pip install 'fairserve[json]')"
            raise RequestError(
                f"this worker cannot honour {_FIELD}: {reason}; allowed: type text",
                _FIELD,
                "unsupported_parameter",
            ) from error
        try:
            return self._json_mode.compile(schema)
        except ValueError as error:
            raise RequestError(f"{_FIELD} has a schema that is refused: {error}", _FIELD) from error
