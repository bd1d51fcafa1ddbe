"""What becomes of one run, as server-sent events.

=============== =================================================================================
``interaction`` the run as it stands, with its program; first, and again at the end
``call``        a call in a new state, as a node of the graph
``node``        a node of a program in a new state, with its output once it has one
``task``        an instance of a node with ``map`` in a new state
``error``       the follower was too slow, or something failed; follow again
=============== =================================================================================

The stream ends with the run. It is not kept: who comes back begins with the run as it stands then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from itertools import count

import orjson
from pydantic import BaseModel

from fairserve.platform.control.port import ControlPort
from fairserve.platform.control.watch import CallNews, RunEnded, RunNews
from fairserve.platform.errors import FairServeError
from fairserve.platform.interactions.graph_view import node_of
from fairserve.platform.interactions.schemas import InteractionOut
from fairserve.platform.programs.news import ProgramNews
from fairserve.platform.programs.repository import ProgramKey
from fairserve.platform.programs.schemas import ProgramNodeOut, ProgramOut
from fairserve.platform.programs.service import Programs

MAX_WAITING = 1_000
"""Events that a follower may not have read yet."""
KEEP_ALIVE = b": still here\n\n"

Read = Callable[[], Awaitable[InteractionOut]]


class RunEvents:
    """The events of one run for one follower."""

    def __init__(self, core_id: str, key: ProgramKey) -> None:
        self._core_id = core_id
        self._key = key
        self._program = False
        self._waiting: deque[CallNews | ProgramNews] = deque()
        self._ended = False
        self._too_slow = False
        self._changed = asyncio.Event()
        self._stops = ExitStack()
        self._numbers = count(1)

    async def open(self, control: ControlPort, programs: Programs, read: Read) -> InteractionOut:
        """Begin to follow; returns the run as it stands. Raises what ``read`` raises."""
        self._stops.callback(control.watch(self._core_id, self._of_run))
        self._program = programs.is_live(self._key)
        if self._program:
            self._stops.callback(programs.watch(self._key, self._of_program))
        try:
            now = await read()
        except BaseException:
            self._stops.close()
            raise
        if now.ended_at is None:
            self._waiting.clear()  # it is in what was read: a live run is read in one step
        else:
            self._ended = True
        return now

    async def stream(
        self, now: InteractionOut, read: Read, keepalive_s: float
    ) -> AsyncIterator[bytes]:
        """The events, from the run as it stands to its end."""
        try:
            yield self._event("interaction", now)
            while not self._too_slow:
                while self._waiting:
                    yield self._news(self._waiting.popleft(), now)
                if self._ended:
                    if now.ended_at is None:
                        yield self._event("interaction", await read())
                    return
                self._changed.clear()
                try:
                    async with asyncio.timeout(keepalive_s):
                        await self._changed.wait()
                except TimeoutError:
                    yield KEEP_ALIVE
            yield self._error(FairServeError("the events were not read in time", code="too_slow"))
        except FairServeError as error:
            yield self._error(error)
        finally:
            self._stops.close()

    # --- what is told -----------------------------------------------------------------------------

    def _of_run(self, news: RunNews) -> None:
        if not isinstance(news, RunEnded):
            self._keep(news)
        elif not self._program:
            self._end()

    def _of_program(self, news: ProgramNews) -> None:
        if isinstance(news, ProgramOut):
            self._end()
        else:
            self._keep(news)

    def _keep(self, news: CallNews | ProgramNews) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._too_slow = True
        else:
            self._waiting.append(news)
        self._changed.set()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    # --- how it is written ------------------------------------------------------------------------

    def _news(self, news: CallNews | ProgramNews, now: InteractionOut) -> bytes:
        if isinstance(news, CallNews):
            began_at = now.opened_at.timestamp()
            return self._event("call", node_of(news.record, news.state, began_at))
        return self._event("node" if isinstance(news, ProgramNodeOut) else "task", news)

    def _event(self, kind: str, data: BaseModel) -> bytes:
        return self._written(kind, data.model_dump_json())

    def _error(self, error: FairServeError) -> bytes:
        return self._written("error", orjson.dumps(error.body()).decode())

    def _written(self, kind: str, data: str) -> bytes:
        return f"id: {next(self._numbers)}\nevent: {kind}\ndata: {data}\n\n".encode()
