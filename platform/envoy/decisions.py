"""The decisions about calls that Envoy carries: its external processor, one gRPC stream a request.

A thin adapter: the steps are those of the embedded plane, in the same order
(:mod:`fairserve.platform.serving.decision.service` and
:mod:`fairserve.platform.serving.completions.service`).

1. *Request headers*: the key, the drain, and the size that the client declares. The body of a stranger
   is never sent here.
2. *Request body*: the call is checked and placed. The answer waits for the grant, and for the call's
   turn where the worker has its queue here; it has the worker's address, its token, and the body that
   the worker understands.
3. *Response headers*: the headers of the placement. They are the start of a call that is not streamed; a
   stream may send them before, and starts with its first event.
4. The stream stays open as long as the answer. If control stops the call, it answers the client with an
   error, and Envoy closes the connection to the worker.

A client that leaves ends the stream: a waiting call is withdrawn. Progress and end are in the access log
(:mod:`fairserve.platform.envoy.access_log`). Calls that Envoy cannot carry are placed here, too, and the
Python relay takes them over (:mod:`fairserve.platform.envoy.behind_envoy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

import grpc
import orjson
from google.protobuf.duration_pb2 import Duration

from fairserve.platform.base.client_address import Network, client_address, is_trusted
from fairserve.platform.base.errors import FairServeError, WorkerFailedError
from fairserve.platform.base.request_facts import RequestFacts, add_error, begin_request
from fairserve.platform.control.messages import Grant
from fairserve.platform.db.base import new_id
from fairserve.platform.envoy.access_log_configuration import CALL_HEADER
from fairserve.platform.envoy.answered import AnsweredRequest
from fairserve.platform.envoy.behind_envoy import envoys_client
from fairserve.platform.envoy.call_endpoints import CALL_ENDPOINTS
from fairserve.platform.envoy.clusters import DESTINATION_HEADER
from fairserve.platform.envoy.listener import CALL, DECISION_MARGIN_S, MAX_DECISION_S, RELAY_HEADER
from fairserve.platform.envoy.messages import immediate, mutation, plain_headers, struct
from fairserve.platform.envoy.open_calls import CallReport, OpenCall, OpenCalls, Submission
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.envoy.sent_call import SentCall
from fairserve.platform.envoy.turn import Turn
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.serving.bodies import (
    BodyMemory,
    BodyReservation,
    check_body_size,
    draining_error,
)
from fairserve.platform.serving.completions.producer import (
    JSON,
    answer_headers,
    error_answer,
    plain_error_answer,
)
from fairserve.platform.serving.completions.requests import CompletionCall
from fairserve.platform.serving.completions.service import Completions, PreparedCall
from fairserve.platform.serving.cors_headers import cors_headers
from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal

logger = logging.getLogger(__name__)

EXTEND_S = DECISION_MARGIN_S / 2
"""Seconds after which a decision asks for more time: Envoy's limit allows for the longest wait for a
grant, but a wait in a worker's local queue has no bound."""
_KEPT_BY_WORKER = frozenset({"host", "content-length", "content-type", "accept", "x-request-id"})
"""Headers of a request that a worker may get; all others are the client's own affair."""
_KEPT_FOR_CLIENT = frozenset({"content-length", "transfer-encoding", "date"})
"""Headers of a worker's answer that are those of the connection."""


@dataclass(frozen=True, slots=True)
class AdapterParts:
    """The parts of the server that the adapter uses."""

    decisions: DecisionService
    completions: Completions
    pool: WorkerPool
    calls: OpenCalls
    bodies: BodyMemory
    draining: asyncio.Event
    max_body_bytes: int
    trusted_proxies: tuple[Network, ...] = ()
    on_answered: Callable[[AnsweredRequest], None] = lambda answered: None


class Context(Protocol):
    """The stream of one request, as gRPC gives it to a handler."""

    async def read(self) -> object:
        """Return the next message, or gRPC's end of the stream."""
        ...

    async def write(self, message: pb.ProcessingResponse) -> None:
        """Send a message."""
        ...

    async def abort(self, code: object, details: str) -> NoReturn:
        """End the stream with an error."""
        ...


class ExternalProcessor:
    """Envoy's service of the same name. Keeps no state of its own."""

    def __init__(self, parts: AdapterParts) -> None:
        self._parts = parts

    async def process(self, requests: object, context: Context) -> None:
        """Handle the stream of one request."""
        exchange = _Exchange(self._parts, context)
        try:
            await exchange.run()
        finally:
            await exchange.close()  # does not suspend: it is done even while this is cancelled


class _AnsweredError(Exception):
    """The request was answered here; nothing follows."""


class _Exchange:
    """One request and its answer."""

    def __init__(self, parts: AdapterParts, context: Context) -> None:
        self._parts = parts
        self._context = context
        self._began_s = time.perf_counter()
        self._writing = asyncio.Lock()
        self._headers: dict[str, str] = {}
        self._path = ""
        self._facts = RequestFacts("")
        self._principal: Principal | None = None
        self._reservation: BodyReservation | None = None
        self._turn: Turn | None = None
        self._call: OpenCall | None = None
        self._sent = False
        """The call was sent to its worker or to the relay, or is being sent."""
        self._left = False
        """The stream ended in order, or while the call was sent, before an answer began: without another
        report the client left."""
        self._ahead: asyncio.Future[object] | None = None
        """The next message, where it is read before the last one is answered."""
        self._stopping: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._variables = contextvars.copy_context()

    async def run(self) -> None:
        """Answer the messages of the stream until Envoy ends it."""
        message = await self._read()
        if message is None:
            return
        first = message.WhichOneof("request")
        if first == "response_headers":  # Envoy itself answers, as it does to an upgrade
            await self._write(pb.ProcessingResponse(response_headers=pb.HeadersResponse()))
            return
        if first != "request_headers":
            await self._context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message must be request_headers"
            )
        try:
            await self._head(message.request_headers)
            await self._body()
        except _AnsweredError:
            return
        begun = False
        while (message := await self._read()) is not None:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                begun = True
                await self._answer_headers(plain_headers(message.response_headers.headers))
            elif kind == "response_trailers":
                await self._write(pb.ProcessingResponse(response_trailers=pb.TrailersResponse()))
            else:
                logger.error("Envoy sent an unexpected message: %s", kind)
                return
        self._left = not begun

    async def close(self) -> None:
        """Handle the end of the stream. A call that was not sent to its worker is withdrawn."""
        if self._reservation is not None:
            self._reservation.release()
        if self._ahead is not None:
            self._ahead.cancel()
        if self._stopping is not None:
            self._stopping.cancel()
        call = self._call
        if call is not None and call.envoys:
            call.on_stop = _nothing
            if self._sent:
                call.stream_ended(client_left=self._left)
            else:
                await call.withdraw()

    async def _read(self) -> pb.ProcessingRequest | None:
        """Return the next message; None at the end of the stream."""
        reading, self._ahead = self._ahead, None
        message = await (self._context.read() if reading is None else reading)
        return message if isinstance(message, pb.ProcessingRequest) else None

    async def _write(self, response: pb.ProcessingResponse) -> None:
        async with self._writing:
            await self._context.write(response)

    # --- request headers --------------------------------------------------------------------------

    async def _head(self, head: pb.HttpHeaders) -> None:
        """Check what needs no body. Raises _AnsweredError if it rejects the request."""
        headers = self._headers = plain_headers(head.headers)
        self._path = headers.get(":path", "").partition("?")[0]
        self._begin_facts()
        try:
            self._check_drain()
            answer = await self._parts.decisions.authenticate(headers)
            if isinstance(answer, Rejection):
                raise answer.error
            self._principal = answer
            owner = answer.tenant_id or answer.scope
            self._reservation = BodyReservation(self._parts.bodies, owner)
            declared = headers.get("content-length", "")
            self._reserve(int(declared) if declared.isdigit() else 0)
            if head.end_of_stream:  # Envoy sends no body message
                await self._prepare(b"")
        except FairServeError as error:
            await self._reject(error)
        await self._write(pb.ProcessingResponse(request_headers=pb.HeadersResponse()))

    def _begin_facts(self) -> None:
        """Begin the facts of the request: its id, and its client, whose address Envoy reports last."""
        raw = [(b"x-forwarded-for", self._headers.get("x-forwarded-for", "").encode("latin-1"))]
        scope = envoys_client({"headers": raw})
        proxies = self._parts.trusted_proxies
        peer = (scope.get("client") or ("",))[0]
        self._facts = begin_request(
            new_id("req"), client_address(scope, proxies), from_proxy=is_trusted(peer, proxies)
        )
        self._variables = contextvars.copy_context()

    def _check_drain(self) -> None:
        if self._parts.draining.is_set():
            raise draining_error()

    def _reserve(self, size_bytes: int) -> None:
        assert self._principal is not None
        assert self._reservation is not None
        limit = self._parts.decisions.max_body_bytes(self._principal)
        most = self._parts.max_body_bytes
        check_body_size(size_bytes, most if limit is None else min(limit, most))
        self._reservation.grow(size_bytes)

    # --- request body -----------------------------------------------------------------------------

    async def _body(self) -> None:
        """Decide about the call. Raises _AnsweredError if it is rejected, or if its client has left."""
        message = await self._read()
        if message is None or message.WhichOneof("request") != "request_body":
            raise _AnsweredError
        response = await self._unless_client_leaves(message.request_body.body)
        if response.HasField("immediate_response"):
            await self._write(response)
            raise _AnsweredError
        assert self._call is not None
        # Envoy may have sent the call, and its worker may have failed, before the write returns.
        self._sent = self._left = True
        await self._write(response)
        self._left = False
        self._call.sent()

    async def _unless_client_leaves(self, raw: bytes) -> pb.ProcessingResponse:
        """Return the decision. Raises _AnsweredError if the client leaves before.

        Before the answer nothing can arrive but the end of the stream, which cancels the decision. It
        has no task of its own: that would cost as much as the checks of a short call.
        """
        deciding = asyncio.current_task()
        assert deciding is not None
        waits = True

        def client_left(_: object) -> None:
            if waits:
                deciding.cancel()

        async def ask_for_time() -> None:
            longest = Duration(seconds=int(MAX_DECISION_S))
            more = pb.ProcessingResponse(override_message_timeout=longest)
            with contextlib.suppress(grpc.aio.BaseError, grpc.RpcError):
                async with self._writing:
                    if waits:
                        await self._context.write(more)

        def ask() -> None:
            self._asking = asyncio.create_task(ask_for_time(), name="time for a decision")

        timer = asyncio.get_running_loop().call_later(EXTEND_S, ask)
        self._ahead = asyncio.ensure_future(self._context.read())
        self._ahead.add_done_callback(client_left)
        try:
            response = await self._decide(raw)
        except asyncio.CancelledError:
            if self._ahead.done() and deciding.uncancel() == 0:
                raise _AnsweredError from None
            raise
        finally:
            waits = False
            timer.cancel()
        if self._ahead.done():
            raise _AnsweredError
        return response

    async def _decide(self, raw: bytes) -> pb.ProcessingResponse:
        """Return the answer to the body, after the grant."""
        prepared = None
        try:
            prepared = await self._prepare(raw)
            checked = prepared.call.checked
            owner = checked.call.tenant, checked.call.app, checked.call.user
            if await self._parts.calls.settled(owner) and checked.seeks_run:
                prepared = await self._prepare(raw)
            self._parts.calls.require_capacity()
            return await self._place(prepared)
        except FairServeError as error:
            return self._rejection(error, prepared)
        except Exception:
            logger.exception("a decision failed")
            return self._rejection(FairServeError("internal error"), prepared)

    async def _prepare(self, raw: bytes) -> PreparedCall:
        """Return the checked call. Raises a FairServeError."""
        assert self._principal is not None
        self._reserve(len(raw))
        headers = {name: v for name, v in self._headers.items() if not name.startswith(":")}
        endpoint = CALL_ENDPOINTS[self._path]
        return await self._parts.completions.prepare(endpoint, raw, headers, self._principal)

    async def _place(self, prepared: PreparedCall) -> pb.ProcessingResponse:
        """Wait for the grant and the call's turn, and return the worker's request.

        Raises a FairServeError.
        """
        submission = Submission()
        placement = await self._parts.decisions.place(prepared.call.checked, self._stop)
        if isinstance(placement, Rejection):
            raise placement.error
        self._turn = Turn(placement)
        sent = await self._turn.wait(lambda grant: self._begin(prepared.call, grant))
        assert self._principal is not None
        call = self._call = self._parts.calls.open(
            prepared, placement, sent, submission, self._principal
        )
        call.on_stop = self._stop_at_envoy
        call.on_end = self._log_end
        return self._to_relay(call) if sent is None else self._to_worker(call, sent)

    async def _begin(self, call: CompletionCall, grant: Grant) -> SentCall | None:
        """Wait until the worker may get the call; None: the relay carries it."""
        member = self._parts.pool.direct(grant.worker_id)
        if member is None or (grant.sampled and self._parts.completions.traces_content):
            return None
        return await SentCall.begin(member, call.worker_request(grant))

    def _to_relay(self, call: OpenCall) -> pb.ProcessingResponse:
        own = {CALL_HEADER: call.record_id, RELAY_HEADER: "1", "x-request-id": call.record_id}
        common = pb.CommonResponse(header_mutation=mutation(own), clear_route_cache=True)
        return pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))

    def _to_worker(self, call: OpenCall, sent: SentCall) -> pb.ProcessingResponse:
        prepared, traceparent = call.prepared.call, call.placement.grant.traceparent
        body = orjson.dumps(sent.body())
        own = {
            DESTINATION_HEADER: sent.member.address or "",
            CALL_HEADER: call.record_id,
            "x-request-id": call.record_id,
            "content-type": JSON,
            "content-length": str(len(body)),
            "accept": "text/event-stream" if prepared.stream else JSON,
            **({"traceparent": traceparent} if traceparent else {}),
            **sent.member.http.token_headers,
        }
        removed = [
            name
            for name in self._headers
            if not name.startswith(":") and name not in own and name not in _KEPT_BY_WORKER
        ]
        common = pb.CommonResponse(
            header_mutation=mutation(own, removed), body_mutation=pb.BodyMutation(body=body)
        )
        known = {
            "record": call.record_id,
            "id": prepared.answer_id,
            "model": prepared.checked.answer_name,
            "stream": prepared.stream,
            "include_usage": prepared.include_usage,
            "continuous_usage": prepared.continuous_usage,
        }
        return pb.ProcessingResponse(
            request_body=pb.BodyResponse(response=common),
            dynamic_metadata=struct({CALL: known}),
        )

    # --- the answer -------------------------------------------------------------------------------

    async def _answer_headers(self, headers: Mapping[str, str]) -> None:
        """Give the answer of a worker the headers of its call."""
        call = self._call
        assert call is not None
        response = pb.ProcessingResponse(response_headers=pb.HeadersResponse())
        if RELAY_HEADER not in headers and call.envoys:
            status = headers.get(":status", "")
            if status != "200":
                await self._fail(call, status)
                return
            call.answering(length_known="content-length" in headers)
            own = answer_headers(stream=call.prepared.call.stream) | self._call_headers(call)
            own |= self._cors(own)
            removed = [
                name
                for name in headers
                if not name.startswith(":") and name not in own and name not in _KEPT_FOR_CLIENT
            ]
            change = mutation(own, removed)
            response.response_headers.response.header_mutation.CopyFrom(change)
        await self._write(response)

    def _call_headers(self, call: OpenCall) -> dict[str, str]:
        checked = call.prepared.call.checked
        return self._parts.decisions.headers(checked, call.placement.grant, call.queue_s)

    async def _fail(self, call: OpenCall, status: str) -> None:
        """Answer with an error instead of a status that no worker may send and that is not retried."""
        error = WorkerFailedError("the worker sent an answer that is not allowed")
        report = CallReport(
            call.record_id, ended=True, broken=f"it answered {status}", status=error.status
        )
        await call.end(report)
        await self._write(self._rejection(error, call.prepared))

    def _stop(self) -> None:
        """Stop the call at whoever carries it, or its wait."""
        if self._call is not None:
            self._call.on_stop()
        elif self._turn is not None:
            self._turn.stop()

    def _stop_at_envoy(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._answer_stop(), name="stop a call")

    async def _answer_stop(self) -> None:
        """Answer the client, which makes Envoy close the connection to the worker."""
        assert self._call is not None
        error = self._call.placement.stop_rejection().error
        with contextlib.suppress(grpc.aio.BaseError, grpc.RpcError):
            await self._write(self._rejection(error, self._call.prepared))

    # --- errors and the log -----------------------------------------------------------------------

    async def _reject(self, error: FairServeError) -> NoReturn:
        """Answer with an error."""
        await self._write(self._rejection(error, None))
        raise _AnsweredError

    def _rejection(
        self, error: FairServeError, prepared: PreparedCall | None
    ) -> pb.ProcessingResponse:
        """Return the answer to a request that has no worker. ``prepared``: it has been checked."""
        add_error(error)
        parts, call = self._parts, self._call
        if prepared is not None:
            checked = prepared.call.checked
            headers = parts.decisions.headers(checked) if call is None else self._call_headers(call)
            answer = error_answer(error, prepared.writer, headers)
        else:
            headers = {"x-request-id": self._facts.request_id}
            if self._principal is not None:
                headers |= parts.decisions.limit_headers(self._principal)
            answer = plain_error_answer(error, headers)
        own = {name: v for name, v in answer.headers.items() if name != "content-length"}
        if call is None:
            self._answered(answer.status)
        return immediate(answer.status, own | self._cors(own), answer.body)

    def _cors(self, headers: Mapping[str, str]) -> dict[str, str]:
        return cors_headers(self._principal, self._headers.get("origin"), headers)

    def _answered(self, status: int) -> None:
        duration_s = time.perf_counter() - self._began_s
        self._parts.on_answered(
            AnsweredRequest("POST", self._path, status, self._facts, self._principal, duration_s)
        )

    def _log_end(self, call: OpenCall, status: int) -> None:
        """Log the end of a call in the context of its request."""
        self._facts.fields |= call.facts()
        self._variables.run(self._answered, status)


def _nothing() -> None:
    """Do nothing."""
