"""Embedding and rerank calls: the way of a completion, with an answer that is one JSON object.

Check, placement, retries, lease, ledger and answers by ``Idempotency-Key`` are those of completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from fairserve.engine.wire.base import WorkerClient
from fairserve.engine.wire.tasks import PoolingPath
from fairserve.interactions.tracking.identity import CallIdentity
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.serving.completions.requests import CheckSize, read_object
from fairserve.platform.serving.completions.responder import RawRequest, Responder
from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.embeddings.requests import (
    PoolingRequest,
    pooling_call,
    read_fields,
)
from fairserve.platform.serving.off_loop import off_loop
from fairserve.platform.tenancy.auth import Principal


class Embeddings:
    """Answers embedding and rerank requests for the models that are served."""

    def __init__(
        self,
        decisions: DecisionService,
        workers: Mapping[str, WorkerClient],
        responder: Responder,
        *,
        keepalive_s: float,
    ) -> None:
        self._decisions = decisions
        self._workers = workers
        self._responder = responder
        self._keepalive_s = keepalive_s

    async def answer(
        self,
        path: PoolingPath,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
        reservation: BodyReservation | None = None,
    ) -> Response:
        """Return the response to a request. Raises a FairServeError if the request is wrong.

        ``reservation`` is the memory of the body; a call that outlives its request owns it.
        """
        return await self._responder.respond(
            RawRequest(path, raw, headers, principal, reservation),
            lambda: self._producer(path, raw, headers, principal),
        )

    async def make(
        self,
        path: PoolingPath,
        fields: dict[str, Any],
        principal: Principal,
        *,
        identity: CallIdentity | None = None,
    ) -> dict[str, Any]:
        """Make one call with these fields and return its answer. Raises a FairServeError.

        ``identity`` names run and call; without one they are read from ``metadata``. Cancelling the task
        cancels the call.
        """
        request = read_fields(path, fields)
        relay = await self._relay(request, principal, identity=identity)
        async with aclosing(relay.chunks()) as chunks:
            async for _ in chunks:
                pass
        assert relay.merger is not None, "the relay merges what is not streamed"
        call = relay.call
        return relay.merger.answer(call.answer_id, call.checked.answer_name, relay.meter.answer())

    async def _producer(
        self, path: PoolingPath, raw: bytes, headers: Mapping[str, str], principal: Principal
    ) -> Producer:
        check_size = self._decisions.check_size
        request = await off_loop(len(raw), _parse, path, raw, check_size)
        relay = await self._relay(request, principal, headers=headers, raw=raw)
        return Producer(relay, self._keepalive_s)

    async def _relay(self, request: PoolingRequest, principal: Principal, **given: Any) -> Relay:
        checked = await self._decisions.check(request.call_request(principal, **given))
        if isinstance(checked, Rejection):
            raise checked.error
        return Relay(pooling_call(request, checked), self._decisions, self._workers)


def _parse(path: PoolingPath, raw: bytes, check_size: CheckSize) -> PoolingRequest:
    return read_fields(path, read_object(raw, check_size))
