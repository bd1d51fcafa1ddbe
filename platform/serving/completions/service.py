"""A completion request from its bytes to the response that answers it.

Parses the body (``requests``), lets the decision service check the call, and carries the answer from the
worker (``relay``), written as the client wants it (``producer``), directly or through the answers that
are kept for an ``Idempotency-Key`` (``responder``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from fairserve.engine.wire.base import WorkerClient
from fairserve.engine.wire.tasks import CompletionPath
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.serving.completions.requests import completion_call, read_request
from fairserve.platform.serving.completions.responder import RawRequest, Responder
from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal


class Completions:
    """Answers completion requests for the models that are served."""

    def __init__(
        self,
        decisions: DecisionService,
        workers: Mapping[str, WorkerClient],
        responder: Responder,
        *,
        keepalive_s: float,
    ) -> None:
        self.models = decisions.models
        self._decisions = decisions
        self._workers = workers
        self._responder = responder
        self._keepalive_s = keepalive_s

    async def answer(
        self,
        path: CompletionPath,
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

    async def _producer(
        self,
        path: CompletionPath,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
    ) -> Producer:
        request = await read_request(path, raw, self._decisions.check_size)
        checked = await self._decisions.check(
            request.call_request(principal, headers=headers, raw=raw)
        )
        if isinstance(checked, Rejection):
            raise checked.error
        relay = Relay(completion_call(request, checked), self._decisions, self._workers)
        return Producer(relay, self._keepalive_s)
