"""A scripted Envoy: a gRPC client of decisions and access log, over a scripted control."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict, ParseDict

from fairserve.engine.wire.circuit import Circuit, CircuitOptions
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.watched_client import CarriedCall, WatchedClient
from fairserve.platform.base.errors import AuthenticationError
from fairserve.platform.control.messages import Grant, RejectCall
from fairserve.platform.envoy.access_log import AccessLogService
from fairserve.platform.envoy.access_log_configuration import (
    ATTEMPTS_LOG,
    ENDS_LOG,
    PROGRESS_LOG,
)
from fairserve.platform.envoy.decisions import AdapterParts, ExternalProcessor
from fairserve.platform.envoy.grpc_server import grpc_server, socket_target
from fairserve.platform.envoy.open_calls import OpenCalls
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.envoy.protocol.services import (
    ACCESS_LOG_SERVICE,
    EXTERNAL_PROCESSOR,
    PROCESS,
    STREAM_ACCESS_LOGS,
)
from fairserve.platform.fleet.member import Member
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.prompt import Prompt
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.serving.bodies import BodyMemory
from fairserve.platform.serving.completions.idempotency import IdempotentAnswers
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.throttling.base import Decision

MAX_BODY_BYTES = 4096
CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
APP = Principal("app", "tenant", "app", key_id="key", actor="sk-fs-x")
USAGE = {"prompt_tokens": 12, "output_tokens": 3, "cached_tokens": 4, "chunks": 3}


class Keys:
    """Knows the keys ``app`` and ``pages``, whose app has an origin."""

    async def authenticate(self, key):
        if key == "pages":
            return Principal(
                "app", "tenant", "app", "key", "x", origins=frozenset({"https://a.example"})
            )
        if key != "app":
            raise AuthenticationError("unknown")
        return APP


class Control:
    """Answers submissions and retries from a script, and keeps every message."""

    lease_s = 60.0

    def __init__(self, *answers):
        self.answers = list(answers)
        self.releases, self.reports, self.submitted = [], [], []
        self.withdrawn = 0
        self.lease = True
        self.on_cancel = None
        self.hold = asyncio.Event()
        self.hold.set()

    def run_of(self, owner, clues, answer):
        return None

    async def interaction(self, run_id):
        return None

    def _next(self, call_id):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Decision):
            return RejectCall(call_id, "run", 1, answer, mid_run=False)
        return Grant(call_id, "run", 1, answer, "tenant/user", 2.0, 0.0, self.lease_s)

    async def submit(self, message, on_cancel):
        self.submitted.append(message)
        self.on_cancel = on_cancel
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        return self._next(message.call.call_id)

    async def release(self, message):
        self.releases.append(message)
        return self._next(message.call_id) if message.retry_on_another_worker else None

    async def recorded(self):
        pass

    def progress(self, message):
        self.reports.append(message)
        return self.lease

    def limits_in_use(self, tenant, app, user):
        return LimitsInUse()

    def model_allowed(self, tenant, app, user, model):
        return True


class Reader:
    """Counts four tokens in every prompt."""

    exact, takes_media = True, False

    async def chat(self, messages, tools, **options):
        return Prompt(np.zeros(4, np.uint32), 0)

    async def sizes(self, texts, **options):
        return [4 for _ in texts], True


class Carried(CarriedCall):
    """A call that is counted at the worker, with the notes for its circuit."""

    def __init__(self, watched, request):
        super().__init__(watched, request, 0)
        self.request = request
        self.notes = []

    def began(self):
        self.notes.append("began")
        super().began()

    def failed(self, error):
        self.notes.append(str(error))
        super().failed(error)

    def end(self):
        self.notes.append("end")
        super().end()


class Watched(WatchedClient):
    """The counts of a worker, which keeps its calls."""

    def __init__(self, http, circuit):
        super().__init__(http, circuit, time.monotonic, lambda: None)
        self.calls = []

    def carried(self, request):
        self.calls.append(Carried(self, request))
        return self.calls[-1]


def worker(worker_id="w0", kind="vllm", queue=None):
    """Return a worker to which Envoy may send calls."""
    spec = WorkerSpec(worker_id, "http://127.0.0.1:8001", kind)
    http, circuit = HttpWorkerClient(spec.url, None, kind), Circuit(CircuitOptions())
    http.authorize("worker-token")
    return Member(spec, http, Watched(http, circuit), queue, circuit, there=True)


class Pool:
    """Workers by id, of which Envoy may use those in ``direct_workers``."""

    def __init__(self, **direct_workers):
        self.direct_workers = direct_workers

    def direct(self, worker_id):
        return self.direct_workers.get(worker_id)


class EnvoyWorld:
    """The adapter with its parts; :func:`envoy_world` starts and stops it."""

    def __init__(self, control, folder, **workers):
        self.control = control
        self.worker = worker()
        self.ends = {}
        """Ends of calls as the log's file has them, by record id."""
        self.answered = []
        self.calls = OpenCalls(
            lambda wanted: {each: self.ends[each] for each in wanted if each in self.ends}
        )
        models = Models(lambda worker_name: 1)
        models.serve(ServedModel(("m",), "worker-m", 100, reader=Reader()))
        decisions = DecisionService(Keys(), control, models)
        self.completions = Completions(
            decisions,
            workers,
            IdempotentAnswers(retention_s=60, max_entries=1, max_bytes=1),
            keepalive_s=60.0,
        )
        self.draining = asyncio.Event()
        self.pool = Pool(w0=self.worker)
        self.parts = AdapterParts(
            decisions,
            self.completions,
            self.pool,
            self.calls,
            BodyMemory(1 << 20, 1.0, MAX_BODY_BYTES),
            self.draining,
            MAX_BODY_BYTES,
            on_answered=self.answered.append,
        )
        self.target = socket_target(folder / "decisions")
        service = AccessLogService(self.calls, lambda delay_s: None)
        self.server = grpc_server(
            self.target, ExternalProcessor(self.parts), service, MAX_BODY_BYTES
        )
        self.channel = grpc.aio.insecure_channel(self.target)
        self.logs = {}

    @property
    def carried(self):
        """Return the calls at the worker, in the order in which they were sent."""
        return self.worker.watched.calls

    def request(self, body=HELLO, **headers):
        return Exchange(self, body, headers)

    async def log(self, name, *entries):
        """Send entries as one thread of Envoy does."""
        if name not in self.logs:
            method = self.channel.stream_unary(
                f"/{ACCESS_LOG_SERVICE}/{STREAM_ACCESS_LOGS}",
                request_serializer=pb.StreamAccessLogsMessage.SerializeToString,
                response_deserializer=pb.StreamAccessLogsResponse.FromString,
            )
            self.logs[name] = method()
            first = pb.StreamAccessLogsMessage()
            first.identifier.log_name = name
            await self.logs[name].write(first)
        message = pb.StreamAccessLogsMessage()
        message.http_logs.log_entry.extend(entries)
        await self.logs[name].write(message)

    async def end(self, record, *, flags=(), status=200, **answer):
        await self.log(ENDS_LOG, entry(record, pb.DOWNSTREAM_END, flags, status, answer))

    async def progress(self, record, **answer):
        await self.log(PROGRESS_LOG, entry(record, pb.DOWNSTREAM_PERIODIC, (), 200, answer))

    async def attempt(self, record, *, flags=(), status=0, host="127.0.0.1", retry_after=""):
        found = entry(record, pb.UPSTREAM_END, flags, status, {})
        if retry_after:
            found.response.response_headers["retry-after"] = retry_after
        if host:
            found.common_properties.upstream_remote_address.socket_address.address = host
        await self.log(ATTEMPTS_LOG, found)


def entry(record, kind, flags, status, answer):
    """Return an entry of the log."""
    found = pb.HTTPAccessLogEntry()
    found.common_properties.access_log_type = kind
    for flag in flags:
        setattr(found.common_properties.response_flags, flag, True)
    found.request.request_headers["x-fairserve-call"] = record
    found.response.response_code.value = status
    if answer:
        ParseDict(answer, found.common_properties.metadata.filter_metadata["fairserve.answer"])
    return found


class Exchange:
    """One request through Envoy: the messages of its stream, and the adapter's answers."""

    def __init__(self, world, body, headers):
        method = world.channel.stream_stream(
            f"/{EXTERNAL_PROCESSOR}/{PROCESS}",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        self.stream = method()
        self.raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = headers.pop("path", CHAT)
        known = {
            ":method": "POST",
            ":path": path,
            "authorization": "Bearer app",
            "cookie": "a=b",
            "x-forwarded-for": "192.0.2.7",
            "content-length": str(len(self.raw)),
        }
        self.headers = {**known, **{name.replace("_", "-"): v for name, v in headers.items()}}
        self.record = None

    async def send(self, **message):
        await self.stream.write(pb.ProcessingRequest(**message))

    async def answer(self):
        return await self.stream.read()

    async def head(self, *, end_of_stream=False):
        """Send the head of the request; return the answer."""
        await self.send(request_headers=http_headers(self.headers, end_of_stream))
        return await self.answer()

    async def decided(self):
        """Send head and body; return the answer to the body."""
        head = await self.head()
        assert head.WhichOneof("response") == "request_headers", head
        await self.send_body()
        return await self.answer()

    async def send_body(self):
        await self.send(request_body=pb.HttpBody(body=self.raw, end_of_stream=True))

    async def placed(self):
        """Send the request; return the change of it for the worker, and note the call's id."""
        answer = await self.decided()
        assert answer.WhichOneof("response") == "request_body", answer
        common = answer.request_body.response
        found = set_headers(common.header_mutation)
        self.record = found["x-fairserve-call"]
        body = json.loads(common.body_mutation.body) if common.HasField("body_mutation") else None
        self.metadata = MessageToDict(answer.dynamic_metadata)
        return found, list(common.header_mutation.remove_headers), body

    async def answering(self, **headers):
        """Send the head of the worker's answer; return the change of it for the client."""
        known = {":status": "200", "content-type": "text/event-stream", "server": "uvicorn"}
        known |= {name.replace("_", "-"): value for name, value in headers.items()}
        known = {name.replace("-status", ":status"): value for name, value in known.items()}
        await self.send(response_headers=http_headers(known, False))
        return await self.answer()

    async def close(self):
        await self.stream.done_writing()


def http_headers(headers, end_of_stream):
    values = [pb.HeaderValue(key=k, raw_value=v.encode("latin-1")) for k, v in headers.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=values), end_of_stream=end_of_stream)


def set_headers(mutation):
    return {
        each.header.key: each.header.raw_value.decode("latin-1") for each in mutation.set_headers
    }


def error_of(answer):
    """Return status, headers and error object of an answer to the client."""
    assert answer.WhichOneof("response") == "immediate_response", answer
    found = answer.immediate_response
    return found.status.code, set_headers(found.headers), json.loads(found.body)["error"]


@asynccontextmanager
async def envoy_world(control, folder, **workers):
    """Start the adapter on a socket in ``folder``; ``workers`` are those of the relay."""
    world = EnvoyWorld(control, folder, **workers)
    await world.server.start()
    try:
        yield world
    finally:
        for log in world.logs.values():
            log.cancel()
        await world.channel.close()
        await world.server.stop(0)
        await world.calls.close()
