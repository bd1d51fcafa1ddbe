"""One request of a gateway and its answer: the stream of an external processor.

    request headers, body -> client, check, wait for the grant -> endpoint and the worker's body
    answer's headers, body -> who served, usage and end        -> the client's answer

The gateway chooses the modes of the bodies (``protocol_config``). With FULL_DUPLEX_STREAMED, which the
endpoint picker protocol requires, the answer to the request headers waits for the grant; with BUFFERED
it is the answer to the body. Messages are read ahead, so that a client that leaves withdraws its call.

Cost: two tasks for each request; for each chunk of the answer one message in and one out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc
import grpc.aio
import orjson

from fairserve.engine.wire.base import (
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.platform.base.errors import (
    BodyTooLargeError,
    FairServeError,
    NotFoundError,
    UnavailableError,
)
from fairserve.platform.base.request_facts import RequestFacts, add_error, begin_request
from fairserve.platform.db.base import new_id
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.picker import messages as wire
from fairserve.platform.picker.answered import AnsweredRequest
from fairserve.platform.picker.answers import (
    AnswerReader,
    FailedAnswer,
    StreamedAnswer,
    WholeAnswer,
)
from fairserve.platform.picker.call_endpoints import CALL_ENDPOINTS
from fairserve.platform.picker.clients import GatewayClient, GatewayClients
from fairserve.platform.picker.endpoints import Endpoints
from fairserve.platform.picker.gateway_call import GatewayCall
from fairserve.platform.picker.protocol import messages_pb2 as pb
from fairserve.platform.picker.sent_call import SentCall
from fairserve.platform.picker.turn import Turn
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation
from fairserve.platform.serving.completions.endpoint import Endpoint, ReadRequest
from fairserve.platform.serving.completions.producer import JSON
from fairserve.platform.serving.completions.requests import CompletionCall
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.placement import Placement
from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.service import DecisionService

logger = logging.getLogger(__name__)

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header with the address of the picked endpoint, and its name in the metadata."""
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
LB_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
AHEAD = 4
"""Messages of a stream that are read before they are handled."""
EVENT_STREAM = "text/event-stream"
DETAILS = "fairserve"
"""Details of our own answers, in the gateway's log."""
RETRY_S = "5"

Context = Any
"""The context of a stream, :class:`grpc.aio.ServicerContext`, which has no types."""
T = TypeVar("T")


@dataclass(frozen=True)
class PickerParts:
    """The parts that the exchanges of one picker share."""

    decisions: DecisionService
    clients: GatewayClients
    pool: WorkerPool
    endpoints: Endpoints
    bodies: BodyMemory
    max_body_bytes: int
    fallbacks: int
    draining: Callable[[], bool]
    on_answered: Callable[[AnsweredRequest], None]
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    """Runs what remains to be done after an exchange."""


class _LeftError(Exception):
    """The gateway has ended the stream."""


class _StoppedError(Exception):
    """Control has stopped the call."""


class Exchange:
    """One stream."""

    def __init__(self, parts: PickerParts, context: Context) -> None:
        self._parts = parts
        self._context = context
        self._began_s = time.monotonic()
        self._messages: asyncio.Queue[pb.ProcessingRequest | None] = asyncio.Queue(AHEAD)
        """Messages that were read ahead; None ends the stream, or wakes a call that was stopped."""
        self._held: deque[pb.ProcessingRequest] = deque()
        """Messages that arrived while the call waited for its grant."""
        self._left = self._stopped = self._worker_lost = False
        self._turn: Turn | None = None
        """The wait of the call for its worker, while it lasts."""
        self._request_mode = self._response_mode = wire.FULL_DUPLEX
        self._headers: dict[str, str] = {}
        self._path = ""
        self._facts = RequestFacts("")
        self._client: GatewayClient | None = None
        self._checked: CheckedCall | None = None
        self._reservation: BodyReservation | None = None
        self._request_trailers = False
        self._call: GatewayCall | None = None
        self._reader: AnswerReader | None = None
        self._status = 0
        """Status that the client gets; 0: none yet."""
        self._head: Mapping[str, str] | None = None
        """Head of the answer that waits for its body: it may become that of an error."""
        self._head_sent = False

    async def run(self) -> None:
        """Answer the messages of the stream until the gateway ends it."""
        reading = asyncio.create_task(self._read_ahead())
        lease = None
        try:
            try:
                await self._request()
                if self._call is not None:
                    lease = asyncio.create_task(self._keep_lease(self._call))
                await self._answer()
            except _StoppedError:
                await self._end_stopped()
            except FairServeError as error:
                await self._reject(error)
        except _LeftError:
            pass
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a gateway's request failed")
            await self._reject(FairServeError("internal error"))
        finally:
            reading.cancel()
            if lease is not None:
                lease.cancel()
            self._close()

    def _close(self) -> None:
        """Release everything; does not suspend, so that it is done even while this is cancelled."""
        if self._reservation is not None:
            self._reservation.release()
        call = self._call
        if call is not None and not call.ended:
            unread = self._response_mode == wire.NONE and self._head_sent and not call.stopped
            self._parts.in_background(call.complete_unread() if unread else call.leave())
        if self._path:
            self._parts.on_answered(
                AnsweredRequest(
                    self._headers.get(":method", ""),
                    self._path,
                    self._status,
                    self._facts,
                    None if self._client is None else self._client.principal,
                    time.monotonic() - self._began_s,
                )
            )

    # --- messages ---------------------------------------------------------------------------------

    async def _read_ahead(self) -> None:
        while True:
            message = await self._context.read()
            if not isinstance(message, pb.ProcessingRequest):
                break
            await self._messages.put(message)
        await self._messages.put(None)

    async def _next(self) -> pb.ProcessingRequest:
        message = None
        if not self._left and not self._stopped:
            message = self._held.popleft() if self._held else await self._messages.get()
        if self._stopped:
            raise _StoppedError
        if message is None:
            raise _LeftError
        return message

    def _stop(self) -> None:
        """End the wait of a call that control has stopped, or wake the exchange of one that was sent."""
        if self._turn is not None:
            self._turn.stop()
            return
        self._stopped = True
        with contextlib.suppress(asyncio.QueueFull):  # it has enough to wake up for
            self._messages.put_nowait(None)

    async def _unless_left(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``; cancel it if the client leaves or control stops the call."""
        task = asyncio.create_task(work)
        try:
            while not task.done() and not self._left:
                await self._hold_next(task)
            if task.done():
                return task.result()  # also if the client has left: the next message is the end
            raise _StoppedError if self._stopped else _LeftError
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _hold_next(self, task: asyncio.Task[T]) -> None:
        """Wait for a task or for a message, which is held back."""
        waiting = asyncio.create_task(self._messages.get())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiting.done():
                waiting.cancel()
        if waiting.done() and not waiting.cancelled():
            message = waiting.result()
            if message is None:
                self._left = True
            else:
                self._held.append(message)

    async def _write(self, **response: Any) -> None:
        await self._context.write(pb.ProcessingResponse(**response))

    async def _reject(self, error: FairServeError) -> None:
        """Answer with an error, which ends the exchange."""
        add_error(error)
        headers = {"x-request-id": self._facts.request_id}
        if self._checked is not None:
            headers |= self._parts.decisions.headers(self._checked)
        headers |= {name.lower(): value for name, value in error.headers.items()}
        if not self._head_sent:
            self._status = error.status
        body = orjson.dumps(error.body())
        answer = wire.immediate(error.status, {"content-type": JSON, **headers}, body, DETAILS)
        await self._context.write(answer)

    # --- the request ------------------------------------------------------------------------------

    async def _request(self) -> None:
        """Handle the request up to its worker's endpoint. Raises a FairServeError that rejects it."""
        first = await self._next()
        if first.WhichOneof("request") != "request_headers" or first.observability_mode:
            await self._context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "the first message must be request_headers, and observability_mode is not supported",
            )
        head = first.request_headers
        self._headers = wire.plain_headers(head.headers)
        self._path = self._headers.get(":path", "").partition("?")[0]
        if first.HasField("protocol_config"):
            self._request_mode = first.protocol_config.request_body_mode
            self._response_mode = first.protocol_config.response_body_mode
        self._facts = begin_request(
            new_id("req"),
            self._headers.get("x-forwarded-for", "").rpartition(",")[2].strip(),
            from_proxy=True,
        )
        if self._parts.draining():
            raise UnavailableError(
                "the picker is stopping; send the request again",
                code="draining",
                headers={"Retry-After": RETRY_S},
            )
        self._client = await self._parts.clients.find(self._headers)
        hint = wire.metadata_value(first.metadata_context, SUBSET_NAMESPACE, SUBSET)
        hinted = None if hint is None else self._parts.endpoints.workers(set(wire.texts_of(hint)))
        endpoint = self._endpoint()
        if endpoint is None:
            await self._pick_any(head, hinted)
            return
        raw = await self._body(head, self._client)
        prepared = await self._prepare(endpoint, raw, self._client, hinted)
        submitted_s = time.monotonic()
        placement, sent, call = await self._unless_left(self._place(*prepared))
        read, _ = prepared
        self._call = GatewayCall(call, read.writer(call), placement, sent, submitted_s)
        if self._reservation is not None:
            self._reservation.release()
        await self._send_to_worker(self._call)
        self._call.was_sent()

    def _endpoint(self) -> Endpoint | None:
        """Return the endpoint of a call; None for a request without a body that is none."""
        for path, endpoint in CALL_ENDPOINTS.items():  # a gateway may have a prefix before it
            if self._path.endswith(path):
                if self._headers.get(":method") == "POST":
                    return endpoint
                break
        if self._headers.get(":method") in ("GET", "HEAD", "OPTIONS"):
            return None
        raise NotFoundError(
            f"gateways send {', '.join(CALL_ENDPOINTS)} here; use FairServe's own API for {self._path!r}"
        )

    async def _pick_any(self, head: pb.HttpHeaders, hinted: frozenset[str] | None) -> None:
        """Send a request that is no call to any worker."""
        if not head.end_of_stream:
            raise NotFoundError(f"a {self._headers.get(':method')} has no body here")
        picked = self._parts.endpoints.any_ready(hinted)
        if picked is None:
            raise _no_endpoint()
        assert self._client is not None
        common = pb.CommonResponse(
            header_mutation=wire.mutation({DESTINATION_HEADER: picked}, self._client.key_headers),
            clear_route_cache=True,
        )
        await self._write(
            request_headers=pb.HeadersResponse(response=common),
            dynamic_metadata=wire.struct({LB_NAMESPACE: {DESTINATION_HEADER: picked}}),
        )

    async def _body(self, head: pb.HttpHeaders, client: GatewayClient) -> bytes:
        """Return the body of a call. Raises BodyTooLargeError, and what its reservation raises."""
        principal = client.principal
        self._reservation = BodyReservation(self._parts.bodies, principal.tenant_id or "")
        most = self._parts.max_body_bytes
        own = self._parts.decisions.max_body_bytes(principal)
        limit = most if own is None else min(own, most)
        declared = self._headers.get("content-length", "")
        self._reserve(int(declared) if declared.isdigit() else 0, limit)
        if head.end_of_stream:
            return b""
        if self._request_mode == wire.BUFFERED:
            await self._write(request_headers=pb.HeadersResponse())
        elif self._request_mode != wire.FULL_DUPLEX:
            raise FairServeError(
                "the gateway must send request bodies: request_body_mode FULL_DUPLEX_STREAMED or"
                " BUFFERED",
                code="gateway_configuration",
            )
        body = bytearray()
        while True:
            message = await self._next()
            kind = message.WhichOneof("request")
            if kind == "request_trailers":
                self._request_trailers = True
                return bytes(body)
            if kind != "request_body":
                raise FairServeError(f"the gateway sent {kind} before the request was complete")
            body += message.request_body.body
            self._reserve(len(body), limit)
            if message.request_body.end_of_stream or self._request_mode == wire.BUFFERED:
                return bytes(body)

    def _reserve(self, size_bytes: int, limit: int) -> None:
        assert self._reservation is not None
        if size_bytes > limit:
            raise BodyTooLargeError(
                f"the body has {size_bytes} bytes or more; allowed here: {limit}"
            )
        self._reservation.grow(size_bytes)

    async def _prepare(
        self,
        endpoint: Endpoint,
        raw: bytes,
        client: GatewayClient,
        hinted: frozenset[str] | None,
    ) -> tuple[ReadRequest, CheckedCall]:
        """Return the checked call. Raises a FairServeError."""
        parts = self._parts
        principal = client.principal
        read = await endpoint.read(raw, principal, parts.decisions.check_size)
        headers = {name: v for name, v in self._headers.items() if not name.startswith(":")}
        request = read.request.call_request(
            principal, endpoint=endpoint.path, headers=headers, raw=raw
        )
        request = client.adapt(read.adapt(request))
        allowed = parts.endpoints.allowed(hinted)
        if allowed is not None:
            if not allowed:
                raise _no_endpoint()
            request = replace(request, workers=allowed)
        checked = await parts.decisions.check(request)
        if isinstance(checked, Rejection):
            raise checked.error
        self._checked = checked
        workers = checked.model.workers
        if not parts.endpoints.ready(workers if allowed is None else workers & allowed):
            raise _no_endpoint()
        return read, checked

    async def _place(
        self, read: ReadRequest, checked: CheckedCall
    ) -> tuple[Placement, SentCall, CompletionCall]:
        """Wait for a worker that may get the call now. Raises a FairServeError."""
        placement = await self._parts.decisions.place(checked, self._stop)
        if isinstance(placement, Rejection):
            raise placement.error
        call = read.request.call(checked)
        self._turn = Turn(placement)
        try:
            sent = await self._turn.wait(
                lambda grant: self._begin(grant.worker_id, call.worker_request(grant))
            )
        finally:
            self._turn = None
        return placement, sent, call

    async def _begin(self, worker_id: str, request: WorkerRequest) -> SentCall:
        member = self._parts.pool.direct(worker_id)
        if member is None:
            raise WorkerUnavailableError("the worker has left", unreachable=True)
        return await SentCall.begin(member, request)

    async def _send_to_worker(self, call: GatewayCall) -> None:
        """Name the endpoint, and send the worker's body back."""
        body = self._worker_body(call)
        picked = self._picked(call)
        grant, record_id = call.placement.grant, call.call.checked.record_id
        assert self._client is not None
        own = {
            DESTINATION_HEADER: picked,
            "content-type": JSON,
            "content-length": str(len(body)),
            "x-request-id": record_id,
            **({"traceparent": grant.traceparent} if grant.traceparent else {}),
            **call.sent.member.http.token_headers,
        }
        # A compressed answer could not be read; and no worker may see a client's key.
        removed = {"accept-encoding", *self._client.key_headers} - own.keys()
        common = pb.CommonResponse(
            header_mutation=wire.mutation(own, sorted(removed)), clear_route_cache=True
        )
        metadata = wire.struct({LB_NAMESPACE: {DESTINATION_HEADER: picked}})
        if self._request_mode == wire.BUFFERED:
            common.body_mutation.CopyFrom(wire.replaced(body))
            response = pb.BodyResponse(response=common)
            await self._write(request_body=response, dynamic_metadata=metadata)
            return
        await self._write(
            request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata
        )
        parts = list(wire.chunks(body))
        for number, part in enumerate(parts, 1):
            last = number == len(parts) and not self._request_trailers
            response = pb.BodyResponse(response=wire.streamed(part, end=last))
            await self._write(request_body=response)
        if self._request_trailers:
            await self._write(request_trailers=pb.TrailersResponse())

    def _worker_body(self, call: GatewayCall) -> bytes:
        fields = call.sent.body()
        if call.call.stream and self._response_mode == wire.NONE:
            # Nothing would remove usage that the client has not requested.
            fields.pop("stream_options", None)
            if call.call.include_usage:
                fields["stream_options"] = {"include_usage": True}
        return orjson.dumps(fields)

    def _picked(self, call: GatewayCall) -> str:
        """Return the endpoint of the call's worker, and after it those that the gateway may try."""
        endpoints, checked = self._parts.endpoints, call.call.checked
        first = call.placement.grant.worker_id
        workers = checked.model.workers
        if checked.call.workers:
            workers &= checked.call.workers
        others = [each for each in endpoints.ready(workers) if each != first]
        named = [endpoints.of(each) for each in (first, *others[: self._parts.fallbacks])]
        return ",".join(each for each in named if each is not None)

    # --- the answer -------------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Handle the answer until the gateway ends the stream."""
        while True:
            message = await self._next()
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                await self._answer_head(message)
            elif kind == "response_body":
                body = message.response_body
                await self._answer_body(body.body, end=body.end_of_stream)
            elif kind == "response_trailers":
                await self._answer_trailers()
            elif kind == "request_trailers":
                await self._write(request_trailers=pb.TrailersResponse())
            else:
                raise FairServeError(f"the gateway sent {kind} out of order")

    async def _answer_head(self, message: pb.ProcessingRequest) -> None:
        head = message.response_headers
        headers = wire.plain_headers(head.headers)
        status = int(headers.get(":status", "0"))
        self._status = status
        call = self._call
        if call is None or call.ended:  # an answer of the gateway's own may follow a failed one
            self._reader = None
            await self._write(response_headers=pb.HeadersResponse())
            return
        self._credit(call, message.metadata_context)
        if status != 200:
            await self._answer_failed_head(call, status, headers, end=head.end_of_stream)
            return
        call.answering()
        if head.end_of_stream:
            rejection = await call.fail(WorkerStreamError("its answer has no body"))
            await self._reject(rejection.error)
            raise _LeftError
        streams = headers.get("content-type", "").startswith(EVENT_STREAM)
        if self._response_mode == wire.NONE:
            call.meter.started = True
            call.sent.began()
            call.renew()
        else:
            self._reader = StreamedAnswer(call) if streams else WholeAnswer(call)
        if self._response_mode == wire.FULL_DUPLEX and not streams:
            self._head = headers
        else:
            await self._send_head(headers)

    def _credit(self, call: GatewayCall, metadata: pb.Metadata) -> None:
        """Credit the worker that served the call, if the gateway names another than the picked one."""
        served = wire.metadata_value(metadata, LB_NAMESPACE, SERVED)
        if served is None or not served.string_value:
            return
        worker_id = self._parts.endpoints.worker(served.string_value)
        member = None if worker_id is None else self._parts.pool.member(worker_id)
        if member is None:
            logger.warning("a gateway sent a call to %s, which is no worker", served.string_value)
            return
        call.served_by(member)

    async def _send_head(self, headers: Mapping[str, str]) -> None:
        """Send the head of an answer, with the headers of its call."""
        call = self._call
        assert call is not None
        own = self._parts.decisions.headers(call.call.checked, call.placement.grant, call.queue_s)
        removed = []
        if self._response_mode != wire.NONE and self._response_mode != wire.BUFFERED:
            removed.append("content-length")
        if headers.get("content-type", "").startswith(EVENT_STREAM):
            own |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        common = pb.CommonResponse(header_mutation=wire.mutation(own, removed))
        self._head_sent = True
        await self._write(response_headers=pb.HeadersResponse(response=common))

    async def _answer_failed_head(
        self, call: GatewayCall, status: int, headers: Mapping[str, str], *, end: bool
    ) -> None:
        """Handle the head of an error: its status and body become ours once the body is read."""
        self._reader = FailedAnswer(call, status, headers)
        if end or self._response_mode in (wire.NONE, wire.STREAMED):
            await self._reader.feed(b"", end=True)
            assert self._reader.rejection is not None
            await self._reject(self._reader.rejection.error)
            raise _LeftError
        if self._response_mode == wire.BUFFERED:
            await self._write(response_headers=pb.HeadersResponse())

    async def _answer_body(self, received: bytes, *, end: bool) -> None:
        """Handle a chunk of the answer."""
        if self._reader is None:
            written = received
        else:
            written = await self._reader.feed(received, end=end)
        error = None if self._reader is None else self._reader.rejection
        if self._response_mode == wire.FULL_DUPLEX:
            await self._send_parts(written, error, end=end)
            return
        common = pb.CommonResponse()
        if self._reader is not None:
            common.body_mutation.CopyFrom(wire.replaced(written))
            if self._response_mode == wire.BUFFERED:
                length = {"content-length": str(len(written))}
                changed = length if error is None else length | self._error_head(error)
                common.header_mutation.CopyFrom(wire.mutation(changed))
        await self._write(response_body=pb.BodyResponse(response=common))

    async def _send_parts(self, written: bytes, error: Rejection | None, *, end: bool) -> None:
        """Send a part of the body in full-duplex mode, after a head that waited for it."""
        if not written and not end:
            return
        if error is not None and not self._head_sent:
            self._head_sent = True
            head = wire.mutation(self._error_head(error), ["content-length"])
            common = pb.CommonResponse(header_mutation=head)
            await self._write(response_headers=pb.HeadersResponse(response=common))
        elif self._head is not None and not self._head_sent:
            await self._send_head(self._head)
        parts = list(wire.chunks(written))
        for number, part in enumerate(parts, 1):
            common = wire.streamed(part, end=end and number == len(parts))
            await self._write(response_body=pb.BodyResponse(response=common))

    def _error_head(self, rejection: Rejection) -> dict[str, str]:
        """Return the head of an error that takes the place of a worker's."""
        add_error(rejection.error)
        assert self._checked is not None
        self._status = rejection.status
        own = self._parts.decisions.headers(self._checked)
        return {
            ":status": str(rejection.status),
            "content-type": JSON,
            **own,
            **rejection.headers,
        }

    async def _answer_trailers(self) -> None:
        """Handle trailers, which end a body that had no last chunk."""
        if self._response_mode == wire.FULL_DUPLEX and self._reader is not None:
            written = await self._reader.feed(b"", end=True)
            await self._send_parts(written, self._reader.rejection, end=False)
        await self._write(response_trailers=pb.TrailersResponse())

    # --- the end ----------------------------------------------------------------------------------

    async def _end_stopped(self) -> None:
        """Answer a call that control has stopped, or whose worker is lost; the gateway hangs up."""
        call = self._call
        if call is None or call.ended:
            return
        if self._worker_lost:
            lost = WorkerUnavailableError("the worker was lost", cause="silent")
            rejection = await call.fail(lost, worker_lost=True)
        else:
            rejection = await call.stop()
        streams = isinstance(self._reader, StreamedAnswer) and self._head_sent
        if streams and self._response_mode == wire.FULL_DUPLEX:
            event = call.writer.error_event(rejection.error)
            add_error(rejection.error)
            common = wire.streamed(event)
            await self._write(response_body=pb.BodyResponse(response=common))
        await self._reject(rejection.error)

    async def _keep_lease(self, call: GatewayCall) -> None:
        """Renew the lease of a call that waits inside its worker."""
        while not call.ended:
            await asyncio.sleep(call.placement.grant.lease_s / 4)
            self._worker_lost = not call.sent.member.there
            call.renew()
            if self._worker_lost or call.stopped:
                self._stop()
                return


def _no_endpoint() -> UnavailableError:
    return UnavailableError(
        "no endpoint that the gateway allows is ready",
        code="no_endpoint",
        headers={"Retry-After": RETRY_S},
    )
