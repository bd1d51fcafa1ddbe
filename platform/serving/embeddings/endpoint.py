"""Endpoints of embeddings and reranking: the way of a completion, with an answer that is one object."""

from __future__ import annotations

from functools import partial

from fairserve.engine.wire.tasks import EMBEDDINGS, RERANK, PoolingPath
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.serving.completions.endpoint import CheckSize, ReadRequest
from fairserve.platform.serving.completions.openai_endpoint import OpenAIWriter
from fairserve.platform.serving.completions.requests import read_object
from fairserve.platform.serving.embeddings.requests import PoolingRequest, read_fields
from fairserve.platform.tenancy.auth import Principal


class PoolingEndpoint:
    """An endpoint whose model generates nothing."""

    def __init__(self, path: PoolingPath) -> None:
        self.path: PoolingPath = path

    async def read(self, raw: bytes, principal: Principal, check_size: CheckSize) -> ReadRequest:
        """Parse and check a body, a large one in a thread."""
        request = await off_loop(len(raw), _parse, self.path, raw, check_size)
        return ReadRequest(request, partial(OpenAIWriter, request))


def _parse(path: PoolingPath, raw: bytes, check_size: CheckSize) -> PoolingRequest:
    return read_fields(path, read_object(raw, check_size))


EMBED = PoolingEndpoint(EMBEDDINGS)
RANK = PoolingEndpoint(RERANK)
