"""Validate embedding and rerank requests before anything is queued.

Which fields there are, and which kind of worker gets them, is in
:mod:`fairserve.engine.wire.request_fields`. The models validate; the original JSON is passed on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from fairserve.platform.base.user_ids import normal_user_id
from fairserve.platform.serving.body_part import StrictPart
from fairserve.platform.serving.decision.request import RequestedTier

MAX_INPUTS = 2048
"""Inputs or documents of one call, as at OpenAI."""
MAX_DIMENSIONS = 65_536
MAX_METADATA_KEYS = 16
MAX_TRUNCATED = 1 << 20

TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
NonEmpty = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Document = NonEmpty | Annotated[dict[Literal["text"], NonEmpty], Field(min_length=1)]


def _user(text: str) -> str:
    """Return the one spelling of the user's id; an empty text names nobody."""
    return normal_user_id(text) if text else text


class PoolingBody(StrictPart):
    """The fields that both kinds of requests share."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty
    user: Annotated[str, AfterValidator(_user)] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS)] | None = None
    service_tier: RequestedTier | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TRUNCATED)] | None = None
    """Tokens to which each input is truncated; -1: the context of the model."""
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None


class EmbeddingBody(PoolingBody):
    """``/v1/embeddings``."""

    input: (
        NonEmpty
        | Tokens
        | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    add_special_tokens: bool | None = None


class RerankBody(PoolingBody):
    """``/v1/rerank``: the form of Jina, Cohere and vLLM."""

    query: NonEmpty
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=1, le=MAX_INPUTS)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=0, le=MAX_TRUNCATED)] | None = None

    @property
    def texts(self) -> list[str]:
        """The documents as texts."""
        return [each if isinstance(each, str) else each["text"] for each in self.documents]
