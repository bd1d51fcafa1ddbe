"""Batches: created, listed and cancelled by apps, and run by the server that claims them.

Batches wait in the database. Each server claims those that have no valid lease, runs at most
``max_live`` of them at a time, of one tenant a share, and renews their leases; after a crash the
leases expire, and the next server continues. Batches that wait need no memory.

Weakness: which batches run is decided when others end. If as many tenants as fill all places have long
batches, a further tenant's first batch waits for the end of one of theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fairserve.platform.base.bulkhead import work_for
from fairserve.platform.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RateLimitedError,
)
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.batches import Batch
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.serving.batches import repository
from fairserve.platform.serving.batches.execution import BatchExecution, BatchExecutionOptions
from fairserve.platform.serving.batches.line_calls import RelayedCalls
from fairserve.platform.serving.batches.schemas import BatchCreate, BatchQuery
from fairserve.platform.serving.bodies import BodyMemory
from fairserve.platform.serving.claims import keep_claims
from fairserve.platform.serving.files import repository as files_repository
from fairserve.platform.serving.files.repository import UNFINISHED, FileOwner
from fairserve.platform.serving.files.service import Files
from fairserve.platform.serving.in_database import in_database
from fairserve.platform.serving.kept_rows import KeptRows, RowBounds

logger = logging.getLogger(__name__)

MOST_KEPT = RowBounds(10_000)
"""Batches of a tenant; beyond that its oldest ended ones are deleted."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Bounds of batches."""

    max_live: int = 128
    tenant_share: float = 1 / 4
    """Largest share of one tenant in the batches that run, and in the memory of their lines."""
    max_unfinished_per_app: int = 16
    memory_bytes: int = 256 * 1024 * 1024
    execution: BatchExecutionOptions = field(default_factory=BatchExecutionOptions)


@dataclass(slots=True)
class _Live:
    execution: BatchExecution
    task: asyncio.Task[None]


class Batches:
    """The batches of this server. Belongs to one event loop; ``start`` and ``close`` once each."""

    def __init__(
        self,
        sessions: SessionFactory,
        files: Files,
        calls: Mapping[str, RelayedCalls],
        options: BatchOptions = BatchOptions(),
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """``calls`` are the makers of calls by endpoint."""
        self._sessions, self._files, self._calls = sessions, files, calls
        self._options, self._now = options, now
        self._memory = BodyMemory(
            options.memory_bytes, options.tenant_share, options.execution.max_line_bytes
        )
        self._kept = KeptRows(
            Batch,
            Batch.created_at,
            of_app=MOST_KEPT,
            of_tenant=MOST_KEPT,
            size=Batch.result_bytes,
            removable=Batch.state.not_in(UNFINISHED) & (Batch.result_bytes == 0),
        )
        self._live: dict[str, _Live] = {}
        self._places = SharedLimit(options.max_live, options.tenant_share)
        self._woken = asyncio.Event()
        self._pausing = False
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run batches, those of earlier processes included."""
        work = keep_claims("batches", self._renew, self._claim, self._woken)
        self._task = asyncio.create_task(work, name="batches")

    def pause(self) -> None:
        """Claim no more batches and send no more calls; results that complete are saved."""
        self._pausing = True
        for live in self._live.values():
            live.execution.pause()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop once calls have ended or ``grace_s`` is over; the next start continues the batches."""
        self.pause()
        tasks = [live.task for live in self._live.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests ---------------------------------------------------------------------------------

    async def create(self, owner: FileOwner, query: BatchCreate) -> Batch:
        """Save a batch, which then waits for its turn.

        Raises InvalidRequestError for an endpoint or a file that it cannot have, and RateLimitedError
        if the app has too many.
        """
        if query.endpoint not in self._calls:
            raise InvalidRequestError(
                f"endpoint is {query.endpoint!r}; allowed: {', '.join(self._calls)}",
                param="endpoint",
            )
        batch = await in_database(self._create, owner, query)
        self._woken.set()
        return batch

    async def find(self, owner: FileOwner, batch_id: str) -> Batch:
        """Return a batch. Raises NotFoundError, also for another app's."""
        return await in_database(self._find, owner, batch_id)

    async def page(self, owner: FileOwner, query: BatchQuery) -> tuple[list[Batch], bool]:
        """Return a page of batches, newest first, and whether there are more.

        Raises InvalidRequestError.
        """
        return await in_database(self._page, owner, query)

    async def cancel(self, owner: FileOwner, batch_id: str) -> Batch:
        """Cancel a batch: its calls are stopped, and its results so far become files.

        Raises NotFoundError, or ConflictError if it has ended or writes its files.
        """
        batch = await in_database(self._cancel, owner, batch_id)
        if (live := self._live.get(batch_id)) is not None:
            live.execution.stop()
        self._woken.set()
        return batch

    # --- steps of requests, in a thread -----------------------------------------------------------

    def _create(self, owner: FileOwner, query: BatchCreate) -> Batch:
        now = self._now()
        with self._sessions.begin() as session:
            files_repository.lock_tenant(session, owner.tenant)
            number = repository.unfinished(session, owner.app)
            if number >= self._options.max_unfinished_per_app:
                raise RateLimitedError(
                    f"the app has {number} batches that have not ended; allowed:"
                    f" {self._options.max_unfinished_per_app}",
                    code="too_many_batches",
                    headers={"Retry-After": "60"},
                )
            file = files_repository.find(session, owner, query.input_file_id, lock=True)
            # One that has expired may be being deleted.
            if file is None or file.purpose != "batch" or file.expires_at <= now:
                raise InvalidRequestError(
                    "input_file_id: there is no such file with the purpose batch",
                    param="input_file_id",
                )
            expiry = query.output_expires_after
            batch = Batch(
                id=new_id("batch"),
                tenant_id=owner.tenant,
                app_id=owner.app,
                endpoint=query.endpoint,
                input_file_id=file.id,
                completion_window=query.completion_window,
                labels=query.metadata,
                output_expires_s=None if expiry is None else expiry.seconds,
                state="validating",
                attempt=0,
                total=0,
                completed=0,
                failed=0,
                result_bytes=0,
                created_at=now,
                expires_at=now + timedelta(hours=int(query.completion_window.removesuffix("h"))),
            )
            session.add(batch)
            session.flush()
            self._kept.add(session, owner.tenant, owner.app, 1, 0)
            return batch

    def _find(self, owner: FileOwner, batch_id: str) -> Batch:
        with self._sessions() as session:
            return _present(repository.find(read_only(session), owner, batch_id))

    def _page(self, owner: FileOwner, query: BatchQuery) -> tuple[list[Batch], bool]:
        with self._sessions() as session:
            found = repository.page(read_only(session), owner, query.after, query.limit + 1)
        return list(found[: query.limit]), len(found) > query.limit

    def _cancel(self, owner: FileOwner, batch_id: str) -> Batch:
        with self._sessions.begin() as session:
            batch = _present(repository.find(session, owner, batch_id, lock=True))
            if batch.state in ("validating", "in_progress"):
                batch.state, batch.cancelling_at = "cancelling", self._now()
            elif batch.state not in ("cancelling", "cancelled"):
                raise ConflictError(f"the batch is {batch.state}", param="batch_id")
            return batch

    # --- running ----------------------------------------------------------------------------------

    async def _renew(self) -> None:
        running = [live.execution.batch for live in self._live.values()]
        if not running:
            return
        lost, cancelled = await to_its_end(repository.renew, self._sessions, running, self._now())
        for batch_id, live in self._live.items():
            if batch_id in lost:
                live.execution.lose()
            elif batch_id in cancelled:
                live.execution.stop()

    async def _claim(self) -> bool:
        """Claim and start a batch; return False if none is due, or all places are taken."""
        if self._pausing or len(self._live) >= self._options.max_live:
            return False
        running = [live.execution.batch for live in self._live.values()]
        batch = await to_its_end(
            repository.claim, self._sessions, running, self._places, self._now()
        )
        if batch is None:
            return False
        execution = BatchExecution(
            batch,
            self._sessions,
            self._files,
            self._calls.get(batch.endpoint),
            self._memory,
            self._options.execution,
            now=self._now,
        )
        self._places.add(batch.tenant_id)
        task = asyncio.create_task(self._work(execution), name=f"batch {batch.id}")
        self._live[batch.id] = _Live(execution, task)
        if self._pausing:
            execution.pause()
        return True

    async def _work(self, execution: BatchExecution) -> None:
        work_for(execution.batch.tenant_id)
        try:
            await execution.work()
        except Exception:
            logger.exception("batch %s failed", execution.batch.id)
        finally:
            del self._live[execution.batch.id]
            self._places.release(execution.batch.tenant_id)
            self._woken.set()


def _present(batch: Batch | None) -> Batch:
    if batch is None:
        raise NotFoundError("there is no such batch", param="batch_id")
    return batch
