"""A real Envoy with the configuration of the product, between scripted workers and a scripted server.

The server's side is a decision service that answers as a test wants, and collects the access logs.
"""

import asyncio
import contextlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import orjson
from google.protobuf import json_format
from installed_envoy import need_envoy
from until import settle

from fairserve.platform.envoy.addresses import Address, Addresses
from fairserve.platform.envoy.configuration import bootstrap
from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.process import EnvoyProcess
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.envoy.protocol import services
from fairserve.platform.envoy.settings import EnvoySettings
from fairserve.platform.envoy.tls import write_certificate
from fairserve.platform.envoy.workers_file import WorkersFile


def option(name, value):
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value.encode()),
        append_action=pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def immediate(status, body, **headers):
    """Return the answer that ends a call."""
    mutation = pb.HeaderMutation(
        set_headers=[option(name.replace("_", "-"), value) for name, value in headers.items()]
    )
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=status), headers=mutation, body=body
        )
    )


@dataclass
class Call:
    """A call as the decision service sees it."""

    headers: dict = field(default_factory=dict)
    body: bytes = b""
    response_headers: dict | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The stream of the decision has ended."""
    cancel: asyncio.Queue = field(default_factory=asyncio.Queue)
    """Takes an immediate response, which is sent at once."""


class Decisions:
    """Both gRPC services of the server."""

    def __init__(self):
        self.calls = []
        self.entries = []
        """Pairs of the log's name and the entry."""
        self.on_headers = lambda call: None
        """Returns an immediate response, or None."""
        self.set_headers = {"x-fairserve-call": "r1"}
        self.metadata = {}
        """Description of the call for the answer filter."""
        self.answer_headers = {"x-fairserve-worker": "w0", "x-call-id": "c1"}
        self.body = None
        """Body for the worker; None: the client's."""
        self.hold = asyncio.Event()
        """Set: calls are not held in the queue."""
        self.hold.set()
        self._server = None

    async def start(self, path):
        # gRPC's own limit of a message is 4 MiB, and a body may be longer. From 1,000 streams on that
        # Python has not seen yet, gRPC cancels some of them at random.
        options = {
            "grpc.max_receive_message_length": -1,
            "grpc.server.max_pending_requests": 1_000_000,
            "grpc.server.max_pending_requests_hard_limit": 1_000_000,
        }
        self._server = grpc.aio.server(options=list(options.items()))
        process = grpc.stream_stream_rpc_method_handler(
            self.process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        logs = grpc.stream_unary_rpc_method_handler(
            self.logs,
            request_deserializer=pb.StreamAccessLogsMessage.FromString,
            response_serializer=pb.StreamAccessLogsResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    services.EXTERNAL_PROCESSOR, {services.PROCESS: process}
                ),
                grpc.method_handlers_generic_handler(
                    services.ACCESS_LOG_SERVICE, {services.STREAM_ACCESS_LOGS: logs}
                ),
            )
        )
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def stop(self):
        await self._server.stop(0)

    async def logs(self, requests, context):
        name = ""
        async for message in requests:
            name = message.identifier.log_name or name
            self.entries += [(name, entry) for entry in message.http_logs.log_entry]
        return pb.StreamAccessLogsResponse()

    def ends(self):
        """Return the end entries of calls."""
        return [
            entry
            for name, entry in self.entries
            if name == "fairserve-ends"
            and entry.common_properties.access_log_type == pb.DOWNSTREAM_END
        ]

    def progress(self):
        """Return the periodic entries of calls."""
        return [
            entry
            for name, entry in self.entries
            if name == "fairserve-progress"
            and entry.common_properties.access_log_type == pb.DOWNSTREAM_PERIODIC
        ]

    def attempts(self):
        """Return the entries of attempts."""
        return [entry for name, entry in self.entries if name == "fairserve-attempts"]

    async def process(self, requests, context):
        call = Call()
        self.calls.append(call)
        outgoing = call.cancel
        reader = asyncio.create_task(self._read(call, requests, outgoing))
        try:
            while (answer := await outgoing.get()) is not None:
                yield answer
        finally:
            reader.cancel()
            call.ended.set()

    async def _read(self, call, requests, outgoing):
        try:
            async for request in requests:
                kind = request.WhichOneof("request")
                answer = await getattr(self, f"_{kind}")(call, getattr(request, kind))
                outgoing.put_nowait(answer)
        finally:
            outgoing.put_nowait(None)

    async def _request_headers(self, call, message):
        call.headers = headers_of(message)
        answer = self.on_headers(call)
        if answer is not None:
            return answer
        return pb.ProcessingResponse(request_headers=pb.HeadersResponse())

    async def _request_body(self, call, message):
        call.body = message.body
        await self.hold.wait()
        answer = pb.ProcessingResponse()
        common = answer.request_body.response
        common.header_mutation.set_headers.extend(
            option(name, value) for name, value in self.set_headers.items()
        )
        common.clear_route_cache = "x-fairserve-relay" in self.set_headers
        if self.body is not None:
            common.body_mutation.body = self.body
            length = option("content-length", str(len(self.body)))  # Envoy compares them
            common.header_mutation.set_headers.append(length)
        if self.metadata is not None:
            answer.dynamic_metadata.update({"fairserve.call": self.metadata})
        return answer

    async def _response_headers(self, call, message):
        call.response_headers = headers_of(message)
        answer = pb.ProcessingResponse()
        answer.response_headers.response.header_mutation.set_headers.extend(
            option(name, value) for name, value in self.answer_headers.items()
        )
        return answer

    async def _response_trailers(self, call, message):
        return pb.ProcessingResponse(response_trailers=pb.TrailersResponse())


def headers_of(message):
    return {each.key: each.raw_value.decode() for each in message.headers.headers}


def facts_of(entry):
    """Return what the answer filter reported in an entry."""
    metadata = entry.common_properties.metadata.filter_metadata
    if "fairserve.answer" not in metadata:
        return {}
    return json_format.MessageToDict(metadata["fairserve.answer"])


@dataclass
class Received:
    """A request as a scripted server received it."""

    method: str
    path: str
    headers: dict
    body: bytes


class Scripted:
    """An HTTP/1.1 server that answers each request by ``script(received, writer)``, byte by byte."""

    def __init__(self, script):
        self.script = script
        self.received = []
        self.lost = asyncio.Event()
        """A peer closed the connection while its answer was being sent."""
        self._server = None
        self._serving = set()
        """Tasks of the open connections: a script that waits for ever has no other reference."""

    async def start(self, path=None):
        if path is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            self.address = f"127.0.0.1:{self.port}"
        else:
            self._server = await asyncio.start_unix_server(self._serve, path)

    async def stop(self):
        self._server.close()
        serving, self._serving = self._serving, set()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
        await settle()  # the transports close

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                if "content-length" in headers:
                    body = await reader.readexactly(int(headers["content-length"]))
                elif "chunked" in headers.get("transfer-encoding", ""):
                    body = await _read_chunked(reader)
                else:
                    body = b""
                received = Received(method, path, headers, body)
                self.received.append(received)
                await self.script(received, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost.set()
        except asyncio.CancelledError:
            if task in self._serving:  # not by stop
                raise
        finally:
            self._serving.discard(task)
            writer.close()


async def _read_chunked(reader):
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def answering(status=200, body=b"{}", **headers):
    """Return a script that sends one whole answer."""

    async def script(received, writer):
        lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return script


def streaming(parts, *, end=True, between=None):
    """Return a script that sends these parts, each as one chunk, and waits ``between`` them."""

    async def script(received, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nserver: uvicorn\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for part in parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            if between is not None:
                await between()
        if end:
            writer.write(b"0\r\n\r\n")

    return script


WHOLE = b'{"choices": [{"index": 0, "finish_reason": "stop", "text": "a"}], "usage": {}}'
"""A worker's complete answer."""
RELAYED = {"x_fairserve_relay": "1", "x_envoy_ratelimited": "1"}
"""Headers of every answer of the relay."""


SPLITTER = """
local real = envoy_on_response
function envoy_on_response(handle)
  local split = handle:headers():get("x-split")
  if not split then return real(handle) end
  local sizes, body = {}, handle:body(true)
  for size in string.gmatch(split, "%d+") do sizes[#sizes + 1] = tonumber(size) end
  local text, out, at, turn, over = body:getBytes(0, body:length()), {}, 1, 0, false
  local fake = {}
  function fake:headers() return handle:headers() end
  function fake:streamInfo() return handle:streamInfo() end
  function fake:timestamp() return handle:timestamp() end
  function fake:bodyChunks()
    return function()
      if over then return nil end
      local piece = string.sub(text, at, at + sizes[turn % #sizes + 1] - 1)
      at, turn, over = at + #piece, turn + 1, #piece == 0
      local chunk = {}
      function chunk:length() return #piece end
      function chunk:getBytes(from, size) return string.sub(piece, from + 1, from + size) end
      function chunk:setBytes(bytes) out[#out + 1] = bytes end
      return chunk
    end
  end
  real(fake)
  body:setBytes(table.concat(out))
end
"""
"""Gives the answer filter an answer in chunks of the sizes in its header ``x-split``, in turn; the last
one is empty, as the end of an HTTP/1.1 answer is."""


class Plane:
    """Envoy, the scripted server behind it, and scripted workers."""

    def __init__(self, folder, limits, settings, change=lambda configuration: None):
        """``change`` edits the configuration."""
        self.folder, self.settings = folder, settings
        self.decisions = Decisions()
        self.api = Scripted(answering(body=b'{"by":"api"}', **RELAYED))
        self.addresses = Addresses(
            listen=Address("127.0.0.1", 0),
            api=Address.socket(folder / "api.sock"),
            decisions=Address.socket(folder / "decisions.sock"),
            admin=Address.socket(folder / "admin.sock"),
            workers_file=folder / "workers.json",
            ends_file=folder / "access.jsonl",
        )
        self.workers_file = WorkersFile(self.addresses.workers_file, self.addresses.api)
        configuration = bootstrap(self.addresses, limits, settings)
        change(configuration)
        self.process = EnvoyProcess(
            configuration,
            folder,
            concurrency=settings.envoy_concurrency,
            ends_file=self.addresses.ends_file,
            first_pause_s=0.01,
        )
        self._workers = []

    async def start(self):
        await self.decisions.start(self.addresses.decisions.path)
        await self.api.start(self.addresses.api.path)
        self.workers_file.write({})
        write_certificate(self.addresses.certificate_file, self.settings)
        await self.process.start()

    async def stop(self):
        await self.process.stop()
        for each in (self.api, *self._workers):
            await each.stop()
        await self.decisions.stop()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.process.port}"

    async def worker(self, script, **metadata):
        """Start a worker that the next calls are sent to, and return it."""
        worker = Scripted(script)
        await worker.start()
        self._workers.append(worker)
        self.send_to(worker.address)
        self.describe(**metadata)
        workers = {f"w{number}": each.address for number, each in enumerate(self._workers)}
        self.workers_file.write(workers)
        await self._knows(worker.address)
        return worker

    async def _knows(self, address):
        """Wait until Envoy has read the address of a worker: before, the relay gets its calls."""
        async with asyncio.timeout(60):
            while address.encode() not in await self.process._ask("GET", "/clusters"):
                pass

    def send_to(self, address):
        self.decisions.set_headers["x-gateway-destination-endpoint"] = address

    def describe(self, **metadata):
        known = {"record": "r1", "id": "chatcmpl-1", "model": "public", "stream": False}
        self.decisions.metadata = known | metadata

    def ends(self):
        """Return the lines of the log of ended calls."""
        return [orjson.loads(line) for line in self.addresses.ends_file.read_bytes().splitlines()]


def splitting(configuration):
    """Let the answer filter of a configuration get its chunks from SPLITTER."""
    listener = configuration["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    for each in manager["http_filters"]:
        source = each["typed_config"].get("default_source_code")
        if source is not None:
            source["inline_string"] += SPLITTER


@contextlib.asynccontextmanager
async def envoy_plane(limits=None, settings=None, change=lambda configuration: None):
    """Yield a running plane in a folder of its own, whose sockets have short paths."""
    need_envoy()
    folder = Path(tempfile.mkdtemp(prefix="envoy-"))
    settings = settings or EnvoySettings(envoy_concurrency=2, envoy_progress_s=0.05)
    plane = Plane(folder, limits or Limits(), settings, change)
    try:
        await plane.start()
        yield plane
    finally:
        await plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
