"""Save the changes of programs in their order, many in one transaction.

Whoever saves waits until it is committed, and the changes that arrive until then are written
together next. While the database is away all of them wait, and nothing is lost: a program continues
only from what is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import orjson
from sqlalchemy import Text, cast, func
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError

from fairserve.engine.backoff import Backoff
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.apart import write_apart
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.leases import RowLease, RowLeaseLostError
from fairserve.platform.db.programs import ProgramRow
from fairserve.platform.serving.kept_rows import KeptRows, RowBounds
from fairserve.platform.serving.programs import repository
from fairserve.platform.serving.programs.repository import ProgramChange, ProgramKey, SavedProgram

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 10.0
MAX_BATCH = 256
"""Changes of one transaction."""
MOST_KEPT = RowBounds(10_000, 256 * 1024 * 1024)
"""Programs of a tenant, and bytes of their declarations; beyond that the oldest ended are deleted."""

_Waiting = tuple[ProgramChange, asyncio.Future[None]]
"""A change, and the future of the one who waits for its commit."""


class ProgramGoneError(Exception):
    """The program was deleted from the database with its app."""


class ProgramStore:
    """Writer of the changes. Belongs to one event loop; ``start`` and ``close`` once each."""

    def __init__(self, sessions: SessionFactory, *, retry_s: float = FIRST_RETRY_S) -> None:
        self.sessions = sessions
        self._kept = KeptRows(
            ProgramRow,
            ProgramRow.created_at,
            of_app=MOST_KEPT,
            of_tenant=MOST_KEPT,
            size=func.length(cast(ProgramRow.declaration, Text)),
            removable=ProgramRow.state != "running",
        )
        self._backoff = Backoff(retry_s, LAST_RETRY_S)
        self._pending: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start writing."""
        self._task = asyncio.create_task(self._run(), name="program store")

    async def close(self) -> None:
        """Stop; changes that nobody waits for are not written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def insert(self, program: SavedProgram) -> None:
        """Save a new program. Raises IntegrityError if its id is used, or OperationalError."""
        await asyncio.to_thread(self._insert, program)

    async def remove(self, key: ProgramKey, attempt: int) -> bool:
        """Delete a program that did not start; return false if another process has claimed it."""
        return await asyncio.to_thread(self._remove, repository.lease(key, attempt))

    async def save(self, change: ProgramChange) -> None:
        """Save a change, and wait until it is committed.

        Raises ProgramGoneError, RowLeaseLostError if another process has claimed the program, and
        DataError for what the database can never hold.

        A task that is cancelled does not know whether it was.
        """
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((change, saved))
        self._wake.set()
        await saved

    async def release(self, key: ProgramKey, attempt: int) -> None:
        """Let another process continue a program; without a database its lease runs out instead."""
        with contextlib.suppress(SQLAlchemyError):
            lease = repository.lease(key, attempt)
            await to_its_end(repository.release, self.sessions, lease)

    # --- writing ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            batch = [each for each in self._pending[:MAX_BATCH] if not each[1].done()]
            del self._pending[:MAX_BATCH]
            if not self._pending:
                self._wake.clear()
            await self._write(batch)

    async def _write(self, batch: list[_Waiting]) -> None:
        """Write the changes; one that the database rejects delays no other."""
        failures = 0
        while True:
            try:
                attempts, rejected = await to_its_end(self._apply, batch)
            except DBAPIError as error:  # also if an app is deleted in this very moment
                logger.warning("programs wait for the database: %s", type(error).__name__)
                failures += 1
                await asyncio.sleep(self._backoff.pause_s(failures))
                continue
            for (_, saved), of_values in rejected:
                if not saved.done():
                    saved.set_exception(of_values)
            for change, saved in batch:
                if saved.done():
                    continue
                if change.key not in attempts:
                    saved.set_exception(ProgramGoneError(change.key.run_id))
                elif attempts[change.key] != change.attempt:
                    saved.set_exception(RowLeaseLostError(change.key.run_id))
                else:
                    saved.set_result(None)
            return

    def _apply(
        self, batch: list[_Waiting]
    ) -> tuple[dict[ProgramKey, int], list[tuple[_Waiting, Exception]]]:
        attempts: dict[ProgramKey, int] = {}

        def write(part: Sequence[_Waiting]) -> None:
            with self.sessions.begin() as session:
                found = repository.apply(session, [change for change, _ in part])
            attempts.update(found)

        return attempts, write_apart(write, batch, lambda error: isinstance(error, DataError))

    def _insert(self, program: SavedProgram) -> None:
        with self.sessions.begin() as session:
            repository.insert(session, program)
            size_bytes = len(orjson.dumps(program.declaration))
            self._kept.add(session, program.key.tenant, program.key.app, 1, size_bytes)

    def _remove(self, held: RowLease[ProgramRow]) -> bool:
        with self.sessions.begin() as session:
            return held.delete(session)
