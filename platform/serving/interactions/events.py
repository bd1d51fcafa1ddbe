"""The events of one run, as server-sent events.

=============== =================================================================================
``interaction`` the state of the run, with its program; first, and again at the end
``call``        a call in a new state, as a node of the graph
``node``        a node of a program in a new state, with its output once it has one
``task``        an instance of a node with ``map`` in a new state
``error``       the follower was too slow, the server stops, or something failed: follow again; or the
                key no longer works
=============== =================================================================================

The stream ends with the run. It is not kept: a new follower starts with the state at that time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from itertools import count

import orjson
from pydantic import BaseModel

from fairserve.platform.base.errors import FairServeError, UnavailableError
from fairserve.platform.control.messages import CallEvent, RunEvent, ServerStopping
from fairserve.platform.control.service import ControlService
from fairserve.platform.serving.interactions.graph_view import node_of
from fairserve.platform.serving.interactions.schemas import InteractionOut
from fairserve.platform.serving.programs.events import ProgramEvent
from fairserve.platform.serving.programs.repository import ProgramKey
from fairserve.platform.serving.programs.schemas import ProgramNodeOut, ProgramOut
from fairserve.platform.serving.programs.service import Programs

MAX_WAITING = 1_000
"""Unread events of a follower at most."""
KEEP_ALIVE = b": still here\n\n"


def error_event(error: FairServeError) -> bytes:
    """Return the event that ends a stream from outside; it has no number."""
    return b"event: error\ndata: " + orjson.dumps(error.body()) + b"\n\n"


Read = Callable[[], Awaitable[InteractionOut]]


class RunEvents:
    """The events of one run for one follower."""

    def __init__(self, core_id: str, key: ProgramKey, sharer: str) -> None:
        """``sharer`` is the tenant that follows, or the operators."""
        self._core_id = core_id
        self._key, self._sharer = key, sharer
        self._program = False
        self._waiting: deque[CallEvent | ProgramEvent] = deque()
        self._ended = False
        self._failure: FairServeError | None = None
        self._changed = asyncio.Event()
        self._numbers = count(1)

    async def stream(
        self, control: ControlService, programs: Programs, read: Read, keepalive_s: float
    ) -> AsyncIterator[bytes]:
        """Yield the events from the current state to the end. Subscribes while it is iterated."""
        with ExitStack() as follows:
            try:
                follows.callback(control.follow_run(self._core_id, self._of_run, self._sharer))
                self._program = programs.is_live(self._key)
                if self._program:
                    follows.callback(programs.watch(self._key, self._of_program, self._sharer))
                now = await read()
                if now.ended_at is None:
                    self._waiting.clear()  # it is in what was read: a live run is read in one step
                yield await self._run(now)
                async for event in self._follow(now, keepalive_s):
                    yield event
                if now.ended_at is None:
                    yield await self._run(await read())
            except FairServeError as error:
                yield self._written("error", orjson.dumps(error.body()).decode())

    async def _follow(self, now: InteractionOut, keepalive_s: float) -> AsyncIterator[bytes]:
        """Yield the events until the run has ended. Raises the failure that ends the stream."""
        while True:
            while self._waiting:
                yield self._encoded(self._waiting.popleft(), now)
            if self._failure is not None:
                raise self._failure
            if self._ended or now.ended_at is not None:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(keepalive_s):
                    await self._changed.wait()
            except TimeoutError:
                yield KEEP_ALIVE

    # --- listeners --------------------------------------------------------------------------------

    def _of_run(self, event: RunEvent) -> None:
        if isinstance(event, CallEvent):
            self._keep(event)
        elif isinstance(event, ServerStopping):
            self._fail(UnavailableError("the server is stopping", code="draining"))
        elif not self._program:
            self._end()

    def _of_program(self, event: ProgramEvent) -> None:
        if isinstance(event, ProgramOut):
            self._end()
        else:
            self._keep(event)

    def _keep(self, event: CallEvent | ProgramEvent) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._fail(FairServeError("the events were not read in time", code="too_slow"))
        else:
            self._waiting.append(event)
            self._changed.set()

    def _fail(self, failure: FairServeError) -> None:
        self._failure = self._failure or failure
        self._changed.set()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    # --- encoding ---------------------------------------------------------------------------------

    def _encoded(self, event: CallEvent | ProgramEvent, now: InteractionOut) -> bytes:
        if isinstance(event, CallEvent):
            began_at = now.opened_at.timestamp()
            return self._event("call", node_of(event.record, event.state, began_at))
        return self._event("node" if isinstance(event, ProgramNodeOut) else "task", event)

    async def _run(self, run: InteractionOut) -> bytes:
        """Return the state of the run, encoded in a thread: the outputs of a program may be long."""
        return await asyncio.to_thread(self._event, "interaction", run)

    def _event(self, kind: str, data: BaseModel) -> bytes:
        return self._written(kind, data.model_dump_json())

    def _written(self, kind: str, data: str) -> bytes:
        return f"id: {next(self._numbers)}\nevent: {kind}\ndata: {data}\n\n".encode()
