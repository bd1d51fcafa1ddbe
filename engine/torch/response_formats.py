"""Converts a request's output format to a grammar, without delaying the event loop or other clients."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import orjson

from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.output_format import OutputFormat
from fairserve.engine.torch.schema_checks import SchemaChecks, UnusableSchemaError
from fairserve.engine.torch.token_constraint import Grammar

if TYPE_CHECKING:
    from fairserve.engine.torch.json_mode import JsonMode

MAX_SCHEMA_BYTES = 64 * 1024
KEPT_SCHEMAS = 32
"""Maximum kept results, compiled or rejected; callers repeat the same schema."""


class KeptSchemas:
    """Results of the last schemas by digest: a grammar, or the reason why there is none.

    Beyond ``bound``, entries of the client with the most entries are dropped first.
    """

    def __init__(self, bound: int = KEPT_SCHEMAS) -> None:
        self._bound = bound
        self._kept: OrderedDict[bytes, tuple[str, Grammar | str]] = OrderedDict()
        """Client and result of each schema, least recently used first."""

    def get(self, key: bytes) -> Grammar | str | None:
        """Return the result of a schema, the same for every client; None if it is not kept."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def put(self, key: bytes, client_id: str, result: Grammar | str) -> None:
        """Keep the result of a client's schema."""
        self._kept[key] = client_id, result
        if len(self._kept) > self._bound:
            counts = Counter(client for client, _ in self._kept.values())
            most = max(counts.values())
            out = next(key for key, (client, _) in self._kept.items() if counts[client] == most)
            del self._kept[out]


class ResponseFormats:
    """Compiler of schemas for one model. JSON mode is loaded on first use.

    Belongs to one event loop.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Collection[int]) -> None:
        self._model = (tokenizer, vocabulary, end_ids)
        self._loading = asyncio.Lock()
        self._loaded: tuple[JsonMode, SchemaChecks] | None = None
        self._kept = KeptSchemas()

    async def grammar(self, wanted: OutputFormat | None, client_id: str) -> Grammar | None:
        """Return the grammar of an output format; None without one.

        Raises RequestError naming the field, and ChecksFullError if too many schemas wait.
        """
        if wanted is None:
            return None
        field = wanted.field
        try:
            text = wanted.text()
        except orjson.JSONEncodeError as error:
            raise RequestError(f"{field}: {error}", field) from error
        encoded = text.encode()
        if len(encoded) > MAX_SCHEMA_BYTES:
            raise RequestError(
                f"{field} has {len(encoded)} bytes; allowed: {MAX_SCHEMA_BYTES}", field
            )
        key = hashlib.sha256(wanted.kind.encode() + b"\0" + encoded).digest()
        result = self._kept.get(key)
        if result is None:
            result = await self._compile(client_id, text, wanted)
            self._kept.put(key, client_id, result)
        if isinstance(result, str):
            raise RequestError(f"{field} is rejected: {result}", field)
        return result

    async def close(self) -> None:
        """End the process that checks schemas."""
        if self._loaded is not None:
            await self._loaded[1].close()

    async def _compile(self, client_id: str, text: str, wanted: OutputFormat) -> Grammar | str:
        """Return the grammar, or the reason why there is none."""
        mode, checks = await self._load(wanted.field)
        try:
            await checks.check(client_id, text, wanted.kind)
            return await asyncio.to_thread(mode.compile, text, wanted.kind)
        except (UnusableSchemaError, ValueError) as error:
            return str(error)

    async def _load(self, field: str) -> tuple[JsonMode, SchemaChecks]:
        async with self._loading:
            if self._loaded is None:
                try:
                    from fairserve.engine.torch.json_mode import JsonMode, token_table

                    table = token_table(*self._model)
                    mode = await asyncio.to_thread(JsonMode, table)
                except (ImportError, ValueError) as error:
                    reason = str(error)
                    if isinstance(error, ImportError):
                        reason = "its extra is not installed (pip install 'fairserve[json]')"
                    raise RequestError(
                        f"this worker cannot honour {field}: {reason}; leave it out",
                        field,
                        "unsupported_parameter",
                    ) from error
                self._loaded = mode, SchemaChecks(table)
            return self._loaded
