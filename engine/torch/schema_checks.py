"""Checks the schemas of clients before the worker compiles them.

A schema may also be another output format: a regular expression, choices, or a grammar.
A small schema can take minutes to compile, or much memory, in native code that cannot be
interrupted. So each new one is first compiled in a child process
(:mod:`fairserve.engine.torch.schema_process`), one at a time and with limits. A schema that passes
there passes here, at about the same cost. Clients take turns: one that sends many costly schemas
waits for its own, and delays another client by one schema at most. The child starts with the first
schema, and is replaced after a schema killed it.

Weakness: a schema is compiled twice, and the child holds a second copy of the token table (about
100 MB for 128,000 tokens). Costly schemas use a core at low priority while they run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from fairserve.engine.torch.output_format import FormatKind

if TYPE_CHECKING:
    from fairserve.engine.torch.json_mode import TokenTable

CPU_S = 1.0
"""Maximum processor time in seconds for compiling one schema."""
MAX_WAITING = 128
MAX_WAITING_PER_CLIENT = 8
END_S = 5.0
"""Seconds within which the child must exit after closing its output; then it is killed."""
_MODULE = "fairserve.engine.torch.schema_process"


class UnusableSchemaError(Exception):
    """The schema cannot be used; the message is the reason."""


class ChecksFullError(Exception):
    """Too many schemas wait for their check; retry later."""


@dataclass(slots=True)
class _Check:
    schema: str
    kind: FormatKind
    done: asyncio.Future[str]
    """Reason why the schema cannot be used; empty if it can."""


class SchemaChecks:
    """The queue of schemas and its child process. Belongs to one event loop."""

    def __init__(self, table: TokenTable, *, cpu_s: float = CPU_S) -> None:
        self._table = table
        self._cpu_s = cpu_s
        self._waiting: dict[str, deque[_Check]] = {}
        """Waiting checks by client; the first client is next."""
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def check(self, client_id: str, schema: str, kind: FormatKind = "json") -> None:
        """Wait until the schema is known to compile within the limits.

        Raises UnusableSchemaError, and ChecksFullError if too many wait, of this client or of all.
        """
        own = len(self._waiting.get(client_id, ()))
        if own >= MAX_WAITING_PER_CLIENT:
            raise ChecksFullError(
                f"{own} schemas of this client wait to be compiled; allowed: up to "
                f"{MAX_WAITING_PER_CLIENT}"
            )
        waiting = sum(map(len, self._waiting.values()))
        if waiting >= MAX_WAITING:
            raise ChecksFullError(f"{waiting} schemas wait to be compiled; allowed: {MAX_WAITING}")
        check = _Check(schema, kind, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client_id, deque()).append(check)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="schema checks")
        if problem := await check.done:
            raise UnusableSchemaError(problem)

    async def close(self) -> None:
        """End the child process. Waiting checks are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for queue in self._waiting.values():
            for check in queue:
                check.done.cancel()
        self._waiting.clear()
        await self._end_process()

    async def _run(self) -> None:
        while self._waiting:
            check = self._next()
            if check.done.done():
                continue  # its waiter has gone
            try:
                problem = await self._compile(check.schema, check.kind)
            except BaseException as error:
                if not check.done.done():
                    check.done.set_exception(ChecksFullError(f"schemas cannot be checked: {error}"))
                if not isinstance(error, Exception):
                    raise
                await self._end_process()
            else:
                if not check.done.done():
                    check.done.set_result(problem)

    def _next(self) -> _Check:
        client_id = next(iter(self._waiting))
        queue = self._waiting.pop(client_id)
        check = queue.popleft()
        if queue:
            self._waiting[client_id] = queue  # after all other clients
        return check

    async def _compile(self, schema: str, kind: FormatKind) -> str:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # its end is handled below
            process.stdin.write(orjson.dumps((kind, schema)) + b"\n")
            await process.stdin.drain()
        answer = await process.stdout.readline()
        if answer:
            return str(orjson.loads(answer))
        # It has closed its output, so it is ending. A kill would reap it first and lose its status.
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
        status = await self._end_process()
        if status == -signal.SIGPROF:
            return f"compiling it takes over {self._cpu_s:g} s of processor time; simplify it"
        if status >= 0:  # the process failed before
            raise RuntimeError(f"the compiler's process ended with status {status}")
        return "compiling it takes too much memory, or it is nested too deeply; simplify it"

    async def _running(self) -> Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", _MODULE, str(self._cpu_s)),
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            table = self._table
            parts = (table.tokenizer, table.vocabulary, table.end_ids)
            self._process.stdin.write(orjson.dumps(parts) + b"\n")
        return self._process

    async def _end_process(self) -> int:
        """Kill the child if it still runs; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError):
            process.kill()
        assert process.stdin is not None
        process.stdin.close()
        return await process.wait()
