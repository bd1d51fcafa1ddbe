"""Measure what a chunk of a streamed answer costs the endpoint picker, and what gRPC alone would cost.

Prints the CPU time per chunk of the whole picker (gRPC, reading and writing the event, progress to
control) beside that of a service of the same gRPC library that answers each message with a prepared
one. *Alone*: one stream at a time, each chunk sent once the one before is answered. *Together*: 64
streams, each with a chunk every 40 ms. The requests, the first chunks and the ends of the answers are
outside the measured time, and the CPU time of the idle server is subtracted.

The gateway and the servers run in child processes: gRPC's thread wakes every event loop of a process.
Weakness: the gateway is Python, too, and takes about as much CPU as the picker, so that an idle machine
with two cores is needed.

    python benchmarks/scripts/picker_chunks.py [ROUNDS]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import grpc
import grpc.aio
import orjson
import uvloop

from fairserve.benchmarks.bench.gateway.processes import Tree
from fairserve.platform.picker.protocol import messages_pb2 as pb
from fairserve.platform.picker.protocol.services import EXTERNAL_PROCESSOR, PROCESS

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from scripted_gateway import CHAT, DUPLEX, PickerServer, chat, sse
from scripted_worker import ScriptedWorker

CHUNKS, FIRST_CHUNKS = 64, 4
ALONE, TOGETHER = 1, 64
STREAMS_ALONE = 10
PACE_S = 0.04
IDLE_S = 0.5


class _Stream:
    """One call of a gateway, up to each of the steps that the measurement separates."""

    def __init__(self, call, key):
        raw = sse(*["word "] * (CHUNKS + FIRST_CHUNKS - 1))
        self._parts = [part + b"\n\n" for part in raw.split(b"\n\n") if part]
        self._call, self._key = call, key
        self._sent = 0

    async def begin(self):
        """Send the request, the head of the answer and its first chunks."""
        self._stream = self._call()
        mode = pb.ProtocolConfiguration(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
        names = {":method": "POST", ":path": CHAT, "authorization": f"Bearer {self._key}"}
        await self._send(request_headers=_headers(names), protocol_config=mode)
        await self._send(
            request_body=pb.HttpBody(body=orjson.dumps(chat("ok")), end_of_stream=True)
        )
        while not (await self._part("request_body")).end_of_stream:
            pass
        head = {":status": "200", "content-type": "text/event-stream"}
        await self._send(response_headers=_headers(head))
        await self._part("response_headers")
        # The first chunk has no output yet, and is answered together with the second.
        await self._chunk()
        for _ in range(FIRST_CHUNKS - 1):
            await self._answered_chunk()

    async def answer_alone(self):
        """Send the chunks, each once the one before is answered."""
        for _ in range(CHUNKS):
            await self._answered_chunk()

    async def answer_paced(self, delay_s):
        """Send a chunk every ``PACE_S``, and read what comes."""
        reading = asyncio.create_task(self._read_chunks())
        due_s = asyncio.get_running_loop().time() + delay_s
        for _ in range(CHUNKS):
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            await self._chunk()
            due_s += PACE_S
        await reading

    async def end(self):
        """Send the rest of the answer."""
        while self._sent < len(self._parts):
            await self._chunk()
        await self._stream.done_writing()
        while await self._stream.read() is not grpc.aio.EOF:
            pass

    async def _send(self, **fields):
        await self._stream.write(pb.ProcessingRequest(**fields))

    async def _chunk(self):
        part = self._parts[self._sent]
        self._sent += 1
        end = self._sent == len(self._parts)
        await self._send(response_body=pb.HttpBody(body=part, end_of_stream=end))

    async def _answered_chunk(self):
        await self._chunk()
        await self._part("response_body")

    async def _read_chunks(self):
        for _ in range(CHUNKS):
            await self._part("response_body")

    async def _part(self, kind):
        message = await self._stream.read()
        found = message.WhichOneof("response")
        if kind == "request_body" and found == "request_headers":
            return await self._part(kind)
        assert found == kind, message
        return getattr(message, kind).response.body_mutation.streamed_response


def _headers(plain):
    values = [pb.HeaderValue(key=name, raw_value=each.encode()) for name, each in plain.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=values))


async def _gateway(pipe):
    """Send calls as ordered; the other end of the pipe measures one of the steps."""
    loop = asyncio.get_running_loop()
    while (order := await loop.run_in_executor(None, pipe.recv)) is not None:
        port, key, streams = order
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(
                f"/{EXTERNAL_PROCESSOR}/{PROCESS}",
                pb.ProcessingRequest.SerializeToString,
                pb.ProcessingResponse.FromString,
            )
            for _ in range(STREAMS_ALONE if streams == ALONE else 1):
                opened = [_Stream(call, key) for _ in range(streams)]
                await asyncio.gather(*(each.begin() for each in opened))
                pipe.send("begun")
                await loop.run_in_executor(None, pipe.recv)
                if streams == ALONE:
                    await opened[0].answer_alone()
                else:
                    shift_s = PACE_S / streams
                    paced = (each.answer_paced(shift_s * at) for at, each in enumerate(opened))
                    await asyncio.gather(*paced)
                pipe.send("answered")
                await loop.run_in_executor(None, pipe.recv)
                await asyncio.gather(*(each.end() for each in opened))
        pipe.send("over")


def _run_gateway(pipe):
    uvloop.run(_gateway(pipe))


def _serve_picker(pipe):
    """Serve gateways until the other end of the pipe closes."""
    worker = ScriptedWorker(kv_blocks=4096)
    with tempfile.TemporaryDirectory() as folder:
        picker = PickerServer(Path(folder) / "data", worker, flags=("--log-level", "warning"))
        pipe.send((picker.picker.port, picker.app_key))
        pipe.recv()
        picker.close()
    worker.close()


def _serve_prepared(pipe):
    """Serve external processing that answers chunks with a prepared message."""
    uvloop.run(_prepared(pipe))


async def _prepared(pipe):
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(_process)
    services = grpc.method_handlers_generic_handler(EXTERNAL_PROCESSOR, {PROCESS: handler})
    server.add_generic_rpc_handlers((services,))
    pipe.send((server.add_insecure_port("127.0.0.1:0"), ""))
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await server.stop(None)


async def _process(_, context):
    event = sse("word ").split(b"\n\n")[1] + b"\n\n"
    chunk = _reply("response_body", event)
    await context.read()
    await context.read()
    await context.write(_reply("request_body", b"", end=True))
    await context.read()
    await context.write(pb.ProcessingResponse(response_headers={}).SerializeToString())
    await context.read()  # the first chunk
    for _ in range(FIRST_CHUNKS - 1 + CHUNKS):
        await context.read()
        await context.write(chunk)
    while await context.read() is not grpc.aio.EOF:
        pass


def _reply(kind, body, end=False):
    part = pb.StreamedBodyResponse(body=body, end_of_stream=end)
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=part))
    return pb.ProcessingResponse(**{kind: pb.BodyResponse(response=common)}).SerializeToString()


class _Child:
    """A process that this one talks with over a pipe."""

    def __init__(self, target):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs,))
        self._process.start()
        theirs.close()
        self.tree = Tree(self._process.pid)

    def close(self):
        self.pipe.send(None)
        self._process.join()


class _Server(_Child):
    """A server that gateways ask."""

    def __init__(self, target):
        super().__init__(target)
        self.port, self.key = self.pipe.recv()

    def idle_s(self):
        """Return the CPU seconds per second without calls."""
        before_s = self.tree.cpu_s()
        time.sleep(IDLE_S)
        return (self.tree.cpu_s() - before_s) / IDLE_S

    def chunk_us(self, gateway, streams):
        """Return the CPU microseconds per chunk."""
        idle_s = self.idle_s()
        gateway.send((self.port, self.key, streams))
        used_s, chunks = 0.0, 0
        while gateway.recv() == "begun":
            began_s, before_s = time.monotonic(), self.tree.cpu_s()
            gateway.send("answer")
            gateway.recv()
            used_s += self.tree.cpu_s() - before_s - idle_s * (time.monotonic() - began_s)
            chunks += streams * CHUNKS
            gateway.send("end")
        return 1e6 * used_s / chunks


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    gateway = _Child(_run_gateway)
    servers = {"picker": _Server(_serve_picker), "gRPC alone": _Server(_serve_prepared)}
    measure(gateway, servers, rounds)
    for child in (gateway, *servers.values()):
        child.close()


def measure(gateway, servers, rounds) -> None:
    """Print the cost of a chunk at each server, measured in turns."""
    for server in servers.values():
        server.chunk_us(gateway.pipe, TOGETHER)
    found = {(name, streams): [] for streams in (ALONE, TOGETHER) for name in servers}
    for _ in range(rounds):
        for (name, streams), values in found.items():
            values.append(servers[name].chunk_us(gateway.pipe, streams))
    for (name, streams), values in found.items():
        how = "alone" if streams == ALONE else f"{streams} together"
        spread = f"{min(values):.0f} to {max(values):.0f}"
        print(f"{name}, {how}: {statistics.median(values):.0f} us a chunk ({spread})", flush=True)


if __name__ == "__main__":
    main()
