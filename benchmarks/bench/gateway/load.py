"""The clients of the benchmark, in a process of their own: ``python -m ...load``.

It reads a :class:`GatewayLoad` as JSON from each line of its standard input, sends its calls, and writes
a :class:`LoadOutcome` as a line of JSON. Connections are kept alive, and every answer is checked: its
status, the number of its tokens, and the end of its stream.

*Closed* loads keep a number of calls open, and measure how many complete in a second. *Open* loads
send calls at random times (a Poisson process) at a rate; a call's latency counts from the time at which
it was due, so a late client does not hide a slow server.

Weakness: the client is Python, too. It takes about 100 us for each call and 5 us for each chunk, which
limits what can be measured on a machine with two cores.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from fairserve.benchmarks.bench.gateway.calls import PATH, TOKEN, Bodies, CallShape, Kind

CALL_TIMEOUT_S = 60.0
MAX_ERRORS = 3
"""Messages of failed calls that an outcome has."""
_TOKEN = TOKEN.encode()
_CONTENT = b'"' + _TOKEN
_END = b"data: [DONE]\n\n"
_TAIL = 32
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """The calls of one phase."""

    url: str
    """Base URLs, apart by spaces: connections go to each in turn."""
    key: str
    kind: Kind
    tokens: int
    seed: int
    """Seed of the arrivals, and part of the calls' numbers, so that no prompt is sent twice."""
    seconds: float
    """Duration, after the first wave of a closed load."""
    calls: int = 0
    """Fewest calls: the phase is extended for them."""
    concurrency: int = 0
    """Open calls of a closed load; 0 for an open load."""
    rate: float = 0.0
    """Calls per second of an open load."""
    hold_s: float = 0.0
    """Seconds for which the worker pauses each call."""
    timeout_s: float = CALL_TIMEOUT_S
    """The longest time of a call."""
    limit_s: float = 120.0
    """The longest duration; a phase that lasts longer is an error."""


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Calls and times that the clients observed."""

    calls: int
    """Calls that completed."""
    failed: int
    rps: float
    """Completed calls per second; in a closed load those after its first wave."""
    total_ms: list[float] = field(default_factory=list)
    """Time to the end of the answer of each completed call, ascending."""
    first_ms: list[float] = field(default_factory=list)
    """Time to the first token of each completed call, ascending."""
    errors: list[str] = field(default_factory=list)


class LoadFailedError(Exception):
    """A call was not answered as expected."""


class LoadConnection(asyncio.Protocol):
    """One connection, which carries one call at a time."""

    def __init__(self) -> None:
        self.usable = True
        """Flag: another call may be sent."""
        self._answered: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._tail = self._start = b""
        self.tokens = 0
        """Tokens of the answer."""
        self.first_s = 0.0
        """Time of the first token."""

    async def call(self, request: bytes, shape: CallShape, timeout_s: float) -> None:
        """Send a request, and wait for the whole answer. Raises CallFailedError."""
        self._reset()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await asyncio.wait_for(self._answered, timeout_s)
        except TimeoutError:
            self._transport.abort()
            raise LoadFailedError(f"no end within {timeout_s:g} s") from None
        status = self._parser.get_status_code()
        shown = self._start.decode(errors="replace")
        if status != 200:
            raise LoadFailedError(f"{status} {shown}")
        if self.tokens != shape.tokens:
            raise LoadFailedError(f"{self.tokens} tokens instead of {shape.tokens}: {shown}")
        if shape.kind == "stream" and not self._tail.endswith(_END):
            raise LoadFailedError(f"the stream does not end with [DONE]: {self._tail!r}")

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not derived from it

    def data_received(self, data: bytes) -> None:
        """Parse what was received."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open call."""
        self.usable = False
        self._fail(f"the connection was lost: {exc or 'closed by the server'}")

    # --- the parser -------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """Count the tokens in a part of the answer, also one that two parts share."""
        if len(self._start) < _SHOWN:
            self._start += body[:_SHOWN]
        self.tokens += (self._tail[1 - len(_TOKEN) :] + body).count(_TOKEN)
        if not self.first_s and (_CONTENT in body or self.tokens):
            self.first_s = time.perf_counter()
        self._tail = (self._tail + body)[-_TAIL:]

    def on_message_complete(self) -> None:
        """End the call."""
        if not self._parser.should_keep_alive():
            self.usable = False
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _fail(self, message: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(LoadFailedError(message))


class LoadClients:
    """Sends the calls of one load."""

    def __init__(self, load: GatewayLoad) -> None:
        """Send nothing yet."""
        urls = [urlsplit(url) for url in load.url.split()]
        addresses = [(url.hostname or "", url.port or 80) for url in urls]
        self._addresses = cycle(addresses)
        self._load = load
        self._shape = CallShape(load.kind, load.tokens)
        self._bodies = Bodies(self._shape, first=load.seed * 1_000_000, hold_s=load.hold_s)
        self._head = (
            f"POST {PATH} HTTP/1.1\r\nhost: {addresses[0][0]}\r\naccept: */*\r\n"
            f"authorization: Bearer {load.key}\r\ncontent-type: application/json\r\ncontent-length: "
        ).encode()
        self._idle: list[LoadConnection] = []
        self._total_s: list[float] = []
        self._first_s: list[float] = []
        self._failed = 0
        self._errors: list[str] = []

    async def run(self) -> LoadOutcome:
        """Send all calls; return the outcome. Raises TimeoutError after ``limit_s``."""
        async with asyncio.timeout(self._load.limit_s + self._load.timeout_s):
            rps = await (self._closed() if self._load.concurrency else self._open())
        for connection in self._idle:
            connection.close()
        return LoadOutcome(
            len(self._total_s),
            self._failed,
            rps,
            _ms(self._total_s),
            _ms(self._first_s),
            self._errors,
        )

    async def _closed(self) -> float:
        """Keep ``concurrency`` calls open; return the rate after the first wave."""
        load, begin_s = self._load, time.perf_counter()
        ended_s: list[float] = []

        def wanted() -> bool:
            now_s, first = time.perf_counter(), load.concurrency
            if now_s - begin_s > load.limit_s:
                return False
            if len(ended_s) < max(first + 1, load.calls):
                return True
            return now_s - ended_s[first - 1] < load.seconds

        async def client() -> None:
            while wanted():
                await self._call(time.perf_counter())
                ended_s.append(time.perf_counter())

        async with asyncio.TaskGroup() as clients:
            for _ in range(load.concurrency):
                clients.create_task(client())
        return _steady_rps(ended_s, load.concurrency)

    async def _open(self) -> float:
        """Send calls at random times; return the rate that was reached."""
        load, draw = self._load, random.Random(self._load.seed)  # noqa: S311
        count = max(load.calls, round(load.rate * load.seconds), 1)
        begin_s = due_s = time.perf_counter()
        async with asyncio.TaskGroup() as calls:
            for _ in range(count):
                due_s += draw.expovariate(load.rate)
                await _sleep_until(due_s)
                calls.create_task(self._call(due_s))
        return count / (time.perf_counter() - begin_s)

    async def _call(self, due_s: float) -> None:
        """Send one call; record its times, or its failure."""
        try:
            connection = await self._connection()
            body = self._bodies.next()
            request = b"%s%d\r\n\r\n%s" % (self._head, len(body), body)
            await connection.call(request, self._shape, self._load.timeout_s)
        except (LoadFailedError, OSError) as error:
            self._failed += 1
            if len(self._errors) < MAX_ERRORS:
                self._errors.append(str(error))
            return
        self._total_s.append(time.perf_counter() - due_s)
        self._first_s.append(connection.first_s - due_s)
        if connection.usable:
            self._idle.append(connection)

    async def _connection(self) -> LoadConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(LoadConnection, *next(self._addresses))
        return made


async def _sleep_until(due_s: float) -> None:
    """Sleep until a time of the performance counter; the loop's timers may end a moment early."""
    rest_s = due_s - time.perf_counter()
    while rest_s > 0:
        await asyncio.sleep(rest_s)
        rest_s = due_s - time.perf_counter()


def _steady_rps(ended_s: Sequence[float], first: int) -> float:
    """Return the rate of the ends between the first wave and the last wave of a closed load.

    Clients that stop leave fewer calls open, so that the ends of the last wave come more slowly.
    """
    steady = sorted(ended_s)[first - 1 : max(first + 1, len(ended_s) - first + 1)]
    return (len(steady) - 1) / (steady[-1] - steady[0]) if len(steady) > 1 else 0.0


def _ms(seconds: Sequence[float]) -> list[float]:
    return sorted(round(each * 1000, 3) for each in seconds)


async def serve() -> None:
    """Run the loads of the standard input until it ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer: dict[str, Any]
        try:
            answer = asdict(await LoadClients(GatewayLoad(**json.loads(line))).run())
        except TimeoutError:
            answer = {"error": "the calls did not end in time"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
