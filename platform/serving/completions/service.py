"""A completion request from its bytes to the response that answers it.

Read, check and tokenise (``prepared``); then submit to control and stream from the worker
(``relay``), written as the client wants it (``producer``), directly or through the answers that are
kept for an ``Idempotency-Key`` (``idempotency``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from fairserve.engine.wire.base import CompletionPath, WorkerClient
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.control.port import ControlPort
from fairserve.platform.fleet.models import Models
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
from fairserve.platform.serving.completions.prepared import (
    PreparedCall,
    PrepareOptions,
    fingerprint_of,
    off_loop,
    prepare,
)
from fairserve.platform.serving.completions.producer import Producer
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.tenancy.auth import Principal
from fairserve.scheduling.admission import LimitsInUse


class Completions:
    """Answers completion requests for the models that are served."""

    def __init__(
        self,
        control: ControlPort,
        workers: Mapping[str, WorkerClient],
        answers: IdempotentAnswers,
        models: Models,
        *,
        prepare_options: PrepareOptions,
        keepalive_s: float,
        client_limits: ClientLimits = ClientLimits(),
    ) -> None:
        self.models = models
        self._control = control
        self._workers = workers
        self._answers = answers
        self._prepare_options = prepare_options
        self._keepalive_s = keepalive_s
        self._client_limits = client_limits

    async def answer(
        self,
        path: CompletionPath,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
        reservation: BodyReservation | None = None,
    ) -> Response:
        """The response to a request. Raises a FairServeError for what is wrong with it.

        ``reservation`` is the memory of the body; a call that outlives its request takes it over.
        """
        key = checked_key(headers.get("idempotency-key"))
        if key is None:
            prepared = await self._prepare(path, raw, headers, principal)
            return ProducedResponse(self._producer(prepared).produce, self._client_limits)
        app = principal.app_id or ""
        fingerprint = await off_loop(len(raw), fingerprint_of, principal, path, raw)
        buffer = self._answers.find(app, key, fingerprint)
        if buffer is not None:
            return self._following(buffer, replayed=True)
        prepared = await self._prepare(path, raw, headers, principal)
        # Tokenising may have taken a moment, in which the same request arrived a second time.
        buffer = self._answers.find(app, key, fingerprint)
        if buffer is not None:
            return self._following(buffer, replayed=True)
        buffer = self._answers.begin(app, key, fingerprint, self._producer(prepared), reservation)
        return self._following(buffer, replayed=False)

    def max_body_bytes(self, principal: Principal) -> int | None:
        """The longest body that is read from this app: as its largest model takes it."""
        return self.models.max_body_bytes(lambda name: self._allowed(principal, name))

    # --- models -----------------------------------------------------------------------------------

    def listings(self, principal: Principal) -> list[dict[str, Any]]:
        """The entries of ``/v1/models``: what is served, and the app may ask for."""
        return [entry for entry in self.models.listings() if self._allowed(principal, entry["id"])]

    def listing(self, name: str, principal: Principal) -> dict[str, Any]:
        """The entry of one name. Raises NotFoundError or UnavailableError."""
        entry = self.models.listing(name)
        if not self._allowed(principal, name):
            raise NotFoundError("there is no such model", param="model", code="model_not_found")
        return entry

    def _allowed(self, principal: Principal, name: str) -> bool:
        tenant, app = principal.tenant_id or "", principal.app_id or ""
        return self._control.model_allowed(tenant, app, app, name)

    # --- steps ------------------------------------------------------------------------------------

    async def _prepare(
        self,
        path: CompletionPath,
        raw: bytes,
        headers: Mapping[str, str],
        principal: Principal,
    ) -> PreparedCall:
        return await prepare(
            path, raw, headers, principal, self.models, self._prepare_options, self._user_of
        )

    async def _user_of(self, run_id: str) -> str | None:
        view = await self._control.interaction(run_id)
        return None if view is None else view.user

    def _producer(self, prepared: PreparedCall) -> Producer:
        call = prepared.call

        def limits() -> LimitsInUse:
            return self._control.limits_in_use(call.tenant, call.app, call.user)

        relay = Relay(prepared, self._control, self._workers)
        return Producer(relay, limits, self._keepalive_s)

    def _following(self, buffer: AnswerBuffer, *, replayed: bool) -> Response:
        async def produce(sink: ConnectionSink) -> None:
            await follow(buffer, sink, replayed=replayed)

        return ProducedResponse(produce, self._client_limits)
