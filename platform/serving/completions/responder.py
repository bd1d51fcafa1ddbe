"""Respond to a request of any endpoint, directly or through the answers kept by ``Idempotency-Key``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.responses import Response

from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.completions.answer import (
    AnswerBuffer,
    ClientLimits,
    ConnectionSink,
    ProducedResponse,
)
from fairserve.platform.serving.completions.idempotency import (
    IdempotentAnswers,
    checked_key,
    follow,
)
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.decision.check import fingerprint_of
from fairserve.platform.serving.off_loop import off_loop
from fairserve.platform.tenancy.auth import Principal


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as it was sent, and its sender."""

    endpoint: str
    raw: bytes
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    principal: Principal
    reservation: BodyReservation | None = None
    """Memory of the body; a call that outlives its request owns it."""


class Responder:
    """Turns the producer of an answer into the response."""

    def __init__(
        self, answers: IdempotentAnswers, client_limits: ClientLimits = ClientLimits()
    ) -> None:
        self._answers = answers
        self._client_limits = client_limits

    async def respond(
        self, request: RawRequest, producer: Callable[[], Awaitable[Producer]]
    ) -> Response:
        """Return the response. ``producer`` is called unless there is an earlier answer."""
        key = checked_key(request.headers.get("idempotency-key"))
        if key is None:
            return ProducedResponse((await producer()).produce, self._client_limits)
        app = request.principal.app_id or ""
        fingerprint = await off_loop(
            len(request.raw),
            fingerprint_of,
            request.principal,
            request.endpoint,
            request.raw,
            request.headers,
        )
        buffer = self._answers.find(app, key, fingerprint)
        if buffer is not None:
            return self._following(buffer, replayed=True)
        begun = await producer()
        # Tokenising may have taken a moment, in which the same request arrived a second time.
        buffer = self._answers.find(app, key, fingerprint)
        if buffer is not None:
            return self._following(buffer, replayed=True)
        buffer = self._answers.begin(app, key, fingerprint, begun, request.reservation)
        return self._following(buffer, replayed=False)

    def _following(self, buffer: AnswerBuffer, *, replayed: bool) -> Response:
        async def produce(sink: ConnectionSink) -> None:
            await follow(buffer, sink, replayed=replayed)

        return ProducedResponse(produce, self._client_limits)
