"""A completion request from its bytes to the response that answers it.

The endpoint reads the body (``endpoint``), the decision service checks the call, and the relay carries
the answer from the worker (``relay``), written as the client wants it (``producer``), directly or
through the answers that are kept for an ``Idempotency-Key`` (``idempotency``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp

from fairserve.engine.wire.base import WorkerClient
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.completions.answer import (
    AnswerBuffer,
    ClientLimits,
    ConnectionSink,
    ProducedResponse,
)
from fairserve.platform.serving.completions.endpoint import Endpoint
from fairserve.platform.serving.completions.idempotency import (
    IdempotentAnswers,
    IdempotentRequest,
    checked_key,
    follow,
)
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.completions.relay import OnContent, Relay
from fairserve.platform.serving.completions.running_call import RunningCall
from fairserve.platform.serving.decision.check import fingerprint_of
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal


class Completions:
    """Answers completion requests for the models that are served."""

    def __init__(
        self,
        decisions: DecisionService,
        workers: Mapping[str, WorkerClient],
        answers: IdempotentAnswers,
        *,
        keepalive_s: float,
        client_limits: ClientLimits = ClientLimits(),
        on_content: OnContent | None = None,
    ) -> None:
        self.models = decisions.models
        self._decisions = decisions
        self._workers = workers
        self._answers = answers
        self._on_content = on_content
        self.keepalive_s = keepalive_s
        """Interval of the comments in later answers; may change."""
        self._client_limits = client_limits

    async def answer(
        self,
        endpoint: Endpoint,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
        reservation: BodyReservation | None = None,
    ) -> ASGIApp:
        """Return the response to a request. Raises a FairServeError if the request is wrong.

        ``reservation`` is the memory of the body; a call that outlives its request owns it.
        """
        key = checked_key(headers.get("idempotency-key"))
        if key is None:
            producer = await self.producer(endpoint, raw, headers, principal)
            return self.respond(producer)
        fingerprint = await off_loop(
            len(raw), fingerprint_of, principal, endpoint.path, raw, headers
        )
        request = IdempotentRequest(
            principal.tenant_id or "", principal.app_id or "", key, fingerprint
        )
        buffer = await self._answers.find(request)
        if buffer is not None:
            return self.following(buffer, replayed=True)
        producer = await self.producer(endpoint, raw, headers, principal)
        # Tokenising may have taken a moment, in which the same request arrived a second time.
        buffer, replayed = await self._answers.begin(request, producer, reservation)
        return self.following(buffer, replayed=replayed)

    # --- models -----------------------------------------------------------------------------------

    def listings(self, principal: Principal) -> list[dict[str, Any]]:
        """Return the entries of ``/v1/models``: the models that are served and allowed."""
        return [entry for entry in self.models.listings() if self._allowed(principal, entry["id"])]

    def listing(self, name: str, principal: Principal) -> dict[str, Any]:
        """Return the entry of one name. Raises NotFoundError or UnavailableError."""
        entry = self.models.listing(name)
        if not self._allowed(principal, name):
            raise NotFoundError("there is no such model", param="model", code="model_not_found")
        return entry

    def _allowed(self, principal: Principal, name: str) -> bool:
        return self._decisions.model_allowed(principal, name)

    # --- steps ------------------------------------------------------------------------------------

    async def producer(
        self,
        endpoint: Endpoint,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
        *,
        max_wait_s: float = 0.0,
    ) -> Producer:
        """Return what produces the answer to a request. Raises a FairServeError if it is wrong.

        While control accepts nothing new, the call is submitted again for ``max_wait_s`` seconds.
        """
        read = await endpoint.read(raw, principal, self._decisions.check_size)
        request = read.request.call_request(
            principal, endpoint=endpoint.path, headers=headers, raw=raw
        )
        checked = await self._decisions.check(read.adapt(request))
        running = RunningCall(read.request, checked, read.writer(checked), time.monotonic())
        relay = Relay(
            running,
            self._decisions,
            self._workers.get,
            on_content=self._on_content,
            max_wait_s=max_wait_s,
        )
        return Producer(relay, self.keepalive_s)

    def respond(self, producer: Producer) -> ASGIApp:
        """Return the response that a producer writes; a client that disconnects ends its call."""
        return ProducedResponse(producer.produce, self._client_limits)

    def following(self, buffer: AnswerBuffer, *, replayed: bool) -> ASGIApp:
        """Return the response that follows an answer whose producer belongs to the server."""

        async def produce(sink: ConnectionSink) -> None:
            await follow(buffer, sink, replayed=replayed)

        return ProducedResponse(produce, self._client_limits)
