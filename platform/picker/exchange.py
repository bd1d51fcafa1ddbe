"""One request of a gateway and its answer: the stream of an external processor.

    request headers, body -> client, check, wait for the grant -> endpoint and the worker's body
    answer's headers, body -> who served, usage and end        -> the client's answer

The gateway chooses the modes of the bodies (``protocol_config``). With FULL_DUPLEX_STREAMED, which the
endpoint picker protocol requires, the answer to the request headers waits for the grant; with BUFFERED
it is the answer to the body. While the call waits, the stream is read, so that a client that leaves
withdraws its call.

Cost: two tasks for each request; for each chunk of the answer one message in and one out, handled and
written by the task that has read it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
import orjson

from fairserve.engine.wire.base import (
    Exchange as WorkerExchange,
)
from fairserve.engine.wire.base import (
    HttpAnswer,
    WorkerClient,
    WorkerRequest,
    WorkerStreamError,
)
from fairserve.platform.base.errors import (
    BodyTooLargeError,
    FairServeError,
    NotFoundError,
    UnavailableError,
)
from fairserve.platform.base.request_facts import RequestFacts, add_error, add_facts, begin_request
from fairserve.platform.db.base import new_id
from fairserve.platform.fleet.member import FleetMember
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.picker import messages as wire
from fairserve.platform.picker.answered import AnsweredRequest
from fairserve.platform.picker.call_endpoints import CALL_ENDPOINTS
from fairserve.platform.picker.clients import GatewayClient, GatewayClients
from fairserve.platform.picker.endpoints import Endpoints
from fairserve.platform.picker.protocol import messages_pb2 as pb
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation
from fairserve.platform.serving.completions.endpoint import Endpoint, ReadRequest
from fairserve.platform.serving.completions.producer import JSON, answer_headers
from fairserve.platform.serving.completions.relay import Nobody, Relay
from fairserve.platform.serving.completions.running_call import LEFT, RunningCall
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.service import DecisionService

logger = logging.getLogger(__name__)

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header with the address of the picked endpoint, and its name in the metadata."""
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
LB_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
MOST_HELD = 4
"""Messages of a stream that are held while its call waits; no gateway sends more than trailers then."""
EVENT_STREAM = "text/event-stream"
DETAILS = "fairserve"
"""Details of our own answers, in the gateway's log."""
RETRY_S = "5"

Context = Any
"""The context of a stream, :class:`grpc.aio.ServicerContext`, which has no types."""


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


class _OverError(Exception):
    """The call has ended before its answer did."""


class _GatewayConnection:
    """The connection that a gateway has to a worker: it is not ours to close."""

    def close(self) -> None:
        """Do nothing: the exchange answers the gateway."""

    expect_end = pause = resume = close


class _Written(Nobody):
    """The reader of the call: keeps what the client gets with the next message."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, body: bytes) -> None:
        """Keep a part."""
        self._parts.append(body)

    def take(self) -> bytes:
        """Return what was written since the last time."""
        written, self._parts = b"".join(self._parts), []
        return written


class PickerExchange:
    """One stream."""

    def __init__(self, parts: PickerParts, context: Context) -> None:
        self._parts = parts
        self._context = context
        self._began_s = time.monotonic()
        self._reading: asyncio.Task[Any] | None = None
        """A read that began while the call waited for its grant."""
        self._held: deque[pb.ProcessingRequest] = deque()
        """Messages that arrived while the call waited for its grant."""
        self._task: asyncio.Task[Any] | None = None
        """The task that handles the stream."""
        self._reads = False
        """The task waits for a message, from which the end of the call may interrupt it."""
        self._interrupted = False
        self._request_mode = self._response_mode = wire.FULL_DUPLEX
        self._headers: dict[str, str] = {}
        self._path = ""
        self._facts = RequestFacts("")
        self._client: GatewayClient | None = None
        self._checked: CheckedCall | None = None
        self._reservation: BodyReservation | None = None
        self._request_trailers = False
        self._relay: Relay | None = None
        self._carrying: asyncio.Task[None] | None = None
        self._written = _Written()
        self._sent_request: WorkerRequest | None = None
        """The request that the gateway sends to the worker."""
        self._sent: asyncio.Future[None] | None = None
        self._answer: HttpAnswer | None = None
        """Receives the worker's answer; None: the gateway's answer passes unchanged."""
        self._unread_error = False
        """The body of the answer is an error that is not read."""
        self._error: FairServeError | None = None
        """The error that the client gets in place of the answer, or of its end."""
        self._finished = False
        """The end of the call is known here."""
        self._status = 0
        """Status that the client gets; 0: none yet."""
        self._head: Mapping[str, str] | None = None
        """Head of the answer that waits for its body: it may become that of an error."""
        self._head_sent = False
        self._part = wire.PartAnswer()

    async def run(self) -> None:
        """Answer the messages of the stream until the gateway ends it."""
        self._task = asyncio.current_task()
        try:
            try:
                await self._request()
                await self._answers()
            except _OverError:
                await self._end_early()
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
            if self._reading is not None:
                self._reading.cancel()
            self._close()

    def _close(self) -> None:
        """Release everything; does not suspend, so that it is done even while this is cancelled."""
        if self._reservation is not None:
            self._reservation.release()
        relay, carrying = self._relay, self._carrying
        if relay is not None and carrying is not None:
            add_facts(**relay.call.facts())
            if not self._finished and not carrying.done():
                unread = self._response_mode == wire.NONE and self._head_sent
                self._parts.in_background(self._ends(relay, carrying, unread=unread))
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

    async def _next(self) -> pb.ProcessingRequest:
        """Return the next message. Raises _LeftError at the end, _OverError once the call is over."""
        self._check_over()
        if self._held:
            return self._held.popleft()
        self._reads = True
        try:
            reading, self._reading = self._reading, None
            message = await (self._context.read() if reading is None else reading)
        except asyncio.CancelledError:
            assert self._task is not None
            if self._interrupted and not self._task.uncancel():
                raise _OverError from None
            raise
        finally:
            self._reads = False
        self._check_over()
        if not isinstance(message, pb.ProcessingRequest):
            raise _LeftError
        return message

    def _check_over(self) -> None:
        if self._carrying is not None and self._carrying.done() and not self._finished:
            raise _OverError

    def _call_is_over(self, _: asyncio.Task[None]) -> None:
        """Interrupt the read of a call that control has stopped, or whose worker was lost."""
        if self._reads and not self._finished:
            assert self._task is not None
            self._interrupted = True
            self._task.cancel()

    async def _unless_left(self, *awaited: asyncio.Future[None]) -> None:
        """Wait for one of them. Raises _LeftError if the client leaves before."""
        while not any(each.done() for each in awaited):
            every: list[asyncio.Future[Any]] = [*awaited]
            if len(self._held) < MOST_HELD:
                if self._reading is None:
                    self._reading = asyncio.create_task(self._context.read())
                every.append(self._reading)
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            if self._reading is not None and self._reading.done():
                message = self._reading.result()
                if isinstance(message, pb.ProcessingRequest):
                    self._held.append(message)
                    self._reading = None
                elif not any(each.done() for each in awaited):
                    raise _LeftError

    async def _write(self, **response: Any) -> None:
        await self._context.write(pb.ProcessingResponse(**response).SerializeToString())

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
        await self._context.write(answer.SerializeToString())

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
        read, checked = await self._prepare(endpoint, raw, self._client, hinted)
        running = RunningCall(read.request, checked, read.writer(checked), time.monotonic())
        relay = Relay(
            running,
            self._parts.decisions,
            self._worker,
            self._written,
            transport=self._gateway_sends,
        )
        await self._placed(relay)
        if self._reservation is not None:
            self._reservation.release()
        await self._send_to_worker(relay)

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
        self._checked = checked
        workers = checked.model.workers
        if not parts.endpoints.ready(workers if allowed is None else workers & allowed):
            raise _no_endpoint()
        return read, checked

    async def _placed(self, relay: Relay) -> None:
        """Wait until a worker may get the call. Raises a FairServeError, or _LeftError."""
        self._sent = asyncio.get_running_loop().create_future()
        carrying = asyncio.create_task(relay.carry())
        try:
            await self._unless_left(self._sent, carrying)
            if carrying.done():
                carrying.result()
        except BaseException:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)
            raise
        self._relay, self._carrying = relay, carrying
        carrying.add_done_callback(self._call_is_over)

    def _worker(self, worker_id: str) -> WorkerClient | None:
        member = self._parts.pool.direct(worker_id)
        return None if member is None else member.client

    def _gateway_sends(self, request: WorkerRequest, answer: HttpAnswer) -> WorkerExchange:
        """Have the gateway send a call, which it can do once."""
        self._sent_request, self._answer = request, answer
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)
        return _GatewayConnection()

    async def _send_to_worker(self, relay: Relay) -> None:
        """Name the endpoint, and send the worker's body back."""
        relay.is_last = True
        grant, record_id = relay.call.grant, relay.call.checked.record_id
        member = self._parts.pool.member(grant.worker_id)
        if member is None:
            relay.fail(WorkerStreamError("the worker has left"))
            raise _OverError
        body = self._worker_body(relay, member)
        picked = self._picked(relay)
        assert self._client is not None
        own = {
            DESTINATION_HEADER: picked,
            "content-type": JSON,
            "content-length": str(len(body)),
            "x-request-id": record_id,
            **({"traceparent": grant.traceparent} if grant.traceparent else {}),
            **member.http.token_headers,
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

    def _worker_body(self, relay: Relay, member: FleetMember) -> bytes:
        assert self._sent_request is not None
        fields, call = member.http.body_of(self._sent_request), relay.call
        if call.streams and self._response_mode == wire.NONE:
            # Nothing would remove usage that the client has not requested.
            fields.pop("stream_options", None)
            if call.request.include_usage:
                fields["stream_options"] = {"include_usage": True}
        return orjson.dumps(fields)

    def _picked(self, relay: Relay) -> str:
        """Return the endpoint of the call's worker, and after it those that the gateway may try."""
        endpoints, checked = self._parts.endpoints, relay.call.checked
        first = relay.call.grant.worker_id
        workers = checked.model.workers
        if checked.call.workers:
            workers &= checked.call.workers
        others = [each for each in endpoints.ready(workers) if each != first]
        named = [endpoints.of(each) for each in (first, *others[: self._parts.fallbacks])]
        return ",".join(each for each in named if each is not None)

    # --- the answer -------------------------------------------------------------------------------

    async def _answers(self) -> None:
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
        relay = self._relay
        if relay is None or self._finished:
            # An answer of the gateway's own may follow a failed one.
            self._answer = None
            await self._write(response_headers=pb.HeadersResponse())
            return
        self._credit(relay, message.metadata_context)
        answer = self._answer
        assert answer is not None, "the gateway sends a call once"
        answer.head(status, headers)
        if relay.has_ended:  # nobody can read it
            raise _OverError
        if status != 200:
            # The gateway's own error pages name addresses; only a worker's JSON has a reason.
            self._unread_error = JSON not in headers.get("content-type", "")
            await self._answer_failed_head(answer, end=head.end_of_stream)
            return
        relay.call.answered(time.monotonic())
        if head.end_of_stream:
            relay.fail(WorkerStreamError("its answer has no body"))
            raise _OverError
        if self._response_mode == wire.NONE:
            relay.received([])
        if self._response_mode == wire.FULL_DUPLEX and not relay.call.streams:
            self._head = headers
        else:
            await self._send_head(headers)

    def _credit(self, relay: Relay, metadata: pb.Metadata) -> None:
        """Credit the worker that served the call, if the gateway names another than the picked one."""
        served = wire.metadata_value(metadata, LB_NAMESPACE, SERVED)
        if served is None or not served.string_value:
            return
        worker_id = self._parts.endpoints.worker(served.string_value)
        member = None if worker_id is None else self._parts.pool.member(worker_id)
        if member is None:
            logger.warning("a gateway sent a call to %s, which is no worker", served.string_value)
            return
        assert self._sent_request is not None
        # Without a local queue: the worker has the call already.
        relay.moved(member.worker_id, member.watched, self._sent_request)

    async def _send_head(self, headers: Mapping[str, str]) -> None:
        """Send the head of an answer, with the headers of its call."""
        assert self._relay is not None
        own = self._relay.headers()
        removed = []
        if self._response_mode != wire.NONE and self._response_mode != wire.BUFFERED:
            removed.append("content-length")
        streams = self._relay.call.streams and self._response_mode != wire.NONE
        if streams or headers.get("content-type", "").startswith(EVENT_STREAM):
            own |= answer_headers(stream=True)
        common = pb.CommonResponse(header_mutation=wire.mutation(own, removed))
        self._head_sent = True
        await self._write(response_headers=pb.HeadersResponse(response=common))

    async def _answer_failed_head(self, answer: HttpAnswer, *, end: bool) -> None:
        """Handle the head of an error: its status and body become ours once the body is read."""
        if end or self._response_mode in (wire.NONE, wire.STREAMED):
            answer.end()
            await self._finish()
            assert self._error is not None, "an answer of another status has failed"
            await self._reject(self._error)
            raise _LeftError
        if self._response_mode == wire.BUFFERED:
            await self._write(response_headers=pb.HeadersResponse())

    async def _answer_body(self, received: bytes, *, end: bool) -> None:
        """Handle a chunk of the answer."""
        written = received
        if self._answer is not None and self._response_mode != wire.NONE:
            written = await self._feed(received, end=end)
        error = None if self._head_sent and self._is_stream else self._error
        if self._response_mode == wire.FULL_DUPLEX:
            await self._send_parts(written, error, end=end)
            return
        common = pb.CommonResponse()
        if self._answer is not None and self._response_mode != wire.NONE:
            common.body_mutation.CopyFrom(wire.replaced(written))
            if self._response_mode == wire.BUFFERED:
                length = {"content-length": str(len(written))}
                changed = length if error is None else length | self._error_head(error)
                common.header_mutation.CopyFrom(wire.mutation(changed))
        await self._write(response_body=pb.BodyResponse(response=common))

    @property
    def _is_stream(self) -> bool:
        return self._relay is not None and self._relay.call.streams

    async def _feed(self, received: bytes, *, end: bool) -> bytes:
        """Take a chunk, the last one if ``end``, and return what the client gets now."""
        assert self._relay is not None
        assert self._answer is not None
        if self._finished:
            return b""
        if received and not self._unread_error:
            self._answer.data(received)
        if end:
            self._answer.end()
        if self._relay.has_ended:
            await self._finish()
        return self._written.take()

    async def _finish(self) -> None:
        """Wait for the end of the call, and write the end of its answer."""
        assert self._relay is not None
        assert self._carrying is not None
        call = self._relay.call
        assert call.writer is not None
        self._finished = True
        streams = call.streams
        try:
            await self._carrying
            usage = call.meter.shown(call.used)
            if streams:
                self._written.write(await call.writer.end(usage))
            else:
                assert call.merger is not None, "what is not streamed is merged"
                whole = await call.writer.whole(call.merger, usage)
                self._written.write(orjson.dumps(whole))
            return
        except FairServeError as error:
            self._error = error
        except Exception:
            logger.exception("an answer cannot be written")
            self._error = FairServeError("internal error")
        if streams and self._head_sent:
            add_error(self._error)
            self._written.write(call.writer.error_event(self._error))
        else:
            self._written.write(orjson.dumps(call.writer.error_body(self._error)))

    async def _send_parts(self, written: bytes, error: FairServeError | None, *, end: bool) -> None:
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
        if len(written) <= wire.CHUNK_BYTES:
            await self._context.write(self._part.of(written, end=end))
            return
        parts = list(wire.chunks(written))
        for number, part in enumerate(parts, 1):
            await self._context.write(self._part.of(part, end=end and number == len(parts)))

    def _error_head(self, error: FairServeError) -> dict[str, str]:
        """Return the head of an error that takes the place of a worker's."""
        add_error(error)
        assert self._checked is not None
        self._status = error.status
        own = self._parts.decisions.headers(self._checked)
        headers = {name.lower(): value for name, value in error.headers.items()}
        return {":status": str(error.status), "content-type": JSON, **own, **headers}

    async def _answer_trailers(self) -> None:
        """Handle trailers, which end a body that had no last chunk."""
        if self._response_mode == wire.FULL_DUPLEX and self._answer is not None:
            written = await self._feed(b"", end=True)
            error = None if self._head_sent and self._is_stream else self._error
            await self._send_parts(written, error, end=False)
        await self._write(response_trailers=pb.TrailersResponse())

    # --- the end ----------------------------------------------------------------------------------

    async def _end_early(self) -> None:
        """Answer a call that control has stopped, or whose worker is lost; the gateway hangs up."""
        await self._finish()
        if self._error is None:
            return
        if self._is_stream and self._head_sent and self._response_mode == wire.FULL_DUPLEX:
            await self._context.write(self._part.of(self._written.take()))
        await self._reject(self._error)

    async def _ends(self, relay: Relay, carrying: asyncio.Task[None], *, unread: bool) -> None:
        """End a call whose exchange ended before its answer was complete.

        The client has left, or the worker broke off: the gateway does not name the cause. So the worker
        is probed, and one that does not respond has failed. An answer that the gateway does not show
        (``unread``) counts as complete.
        """
        call, wrong = relay.call, ""
        if unread and call.stop_order is None:
            await relay.complete_unread()
        elif call.stop_order is None:
            relay.hang_up()
            wrong = await _wrong_with(self._parts.pool.member(call.grant.worker_id))
        if wrong or (call.stop_order is not None and not unread):
            relay.lost = bool(wrong)
            relay.fail(WorkerStreamError(wrong or LEFT))
        else:
            carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def _wrong_with(member: FleetMember | None) -> str:
    """Return what is wrong with a worker; empty if it responds."""
    if member is None or not member.there:
        return "the worker was lost"
    try:
        return await member.http.probe()
    except Exception as error:
        logger.exception("a probe of worker %s failed", member.worker_id)
        return f"internal error: {type(error).__name__}"


def _no_endpoint() -> UnavailableError:
    return UnavailableError(
        "no endpoint that the gateway allows is ready",
        code="no_endpoint",
        headers={"Retry-After": RETRY_S},
    )
