"""Endpoints of the calls that gateways carry, by path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fairserve.engine.wire.tasks import EMBEDDINGS, RERANK
from fairserve.platform.serving.completions.endpoint import Endpoint
from fairserve.platform.serving.completions.openai_endpoint import (
    CHAT_COMPLETIONS,
    TEXT_COMPLETIONS,
)
from fairserve.platform.serving.completions.requests import CHAT, TEXT
from fairserve.platform.serving.embeddings.endpoint import EMBED, RANK

CALL_ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {CHAT: CHAT_COMPLETIONS, TEXT: TEXT_COMPLETIONS, EMBEDDINGS: EMBED, RERANK: RANK}
)
