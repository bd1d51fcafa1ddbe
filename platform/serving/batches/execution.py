"""Run one batch: check its file, make the calls of its lines, save their results, and write its files.

The lines are read from the file as calls end, so that memory holds only those in flight. A result is
saved before its line counts as ended; after a restart the lines without a result are called again. A
call that is not accepted (a quota, a full queue) goes back to the lines, and fewer are sent at a time: a
batch that is over its quota tries one call per ``Retry-After``, not all of them. Lines of a user whose
own limit rejects calls for a minute and longer are passed over until then, and read again: memory holds
their numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from fairserve.engine.backoff import Backoff
from fairserve.platform.base.errors import (
    FairServeError,
    InsufficientQuotaError,
    RateLimitedError,
    UnavailableError,
    WorkerFailedError,
)
from fairserve.platform.base.request_facts import begin_request
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.base import TEXT_CHARS, utc_now
from fairserve.platform.db.batches import Batch
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.leases import RowLeaseLostError
from fairserve.platform.db.upsert import fitting_text
from fairserve.platform.serving.batches import lines, repository
from fairserve.platform.serving.batches.line_calls import RelayedCalls
from fairserve.platform.serving.batches.lines import BatchLine, LineError
from fairserve.platform.serving.batches.repository import Result
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation
from fairserve.platform.serving.files.repository import FileOwner
from fairserve.platform.serving.files.service import Files
from fairserve.platform.serving.rejected_calls import is_over, retry_after_s
from fairserve.platform.serving.send_hold import SendHold
from fairserve.platform.tenancy.auth import Principal

logger = logging.getLogger(__name__)

SAVE_S = 0.2
"""Shortest time between two transactions with results of a batch."""
SAVED_AT_ONCE = 64
"""Results that are saved without that pause."""
MAX_ATTEMPTS = 3
"""Attempts of a call that workers could not serve."""
BOUND_CHECK_S = 10.0
"""Interval of the check of the tenant's stored bytes."""
BACKOFF = Backoff(1.0, 30.0)
DATABASE_BACKOFF = Backoff(0.2, 10.0)
RETRY = timedelta(minutes=1)
"""Time until a batch is claimed again whose files could not be read or written."""
GIVE_UP = timedelta(days=1)
"""Time after its window at which such a batch fails."""
LONG_HOLD_S = 60.0
"""Least wait for a user's limit in which lines of others are sent, and between passes over the file."""
STOP_S = 5.0
"""Seconds within which cancelled calls must end."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchExecutionOptions:
    """Bounds of one batch."""

    max_lines: int = 50_000
    max_line_bytes: int = 1024 * 1024
    parallel_calls: int = 32


@dataclass(slots=True)
class _Called:
    """The outcome of a call; neither, if the server stopped it."""

    result: Result | None = None
    held_s: float | None = None
    """Seconds for which no call is sent, if it was not accepted."""
    of_user: bool = False
    """True if the limit of its user alone rejected it for so long that others are sent before."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line in memory."""

    line: BatchLine
    memory: BodyReservation


class BatchExecution:
    """A batch that this process has claimed. Belongs to one event loop; :meth:`work` is its task."""

    def __init__(
        self,
        batch: Batch,
        sessions: SessionFactory,
        files: Files,
        calls: RelayedCalls | None,
        memory: BodyMemory,
        options: BatchExecutionOptions,
        *,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``calls`` makes the calls of its endpoint; None: the server has no such endpoint."""
        self.batch = batch
        self._sessions, self._files = sessions, files
        self._calls, self._memory, self._options = calls, memory, options
        self._now, self._clock = now, clock
        # A line names its run itself, or is a run of its own: no rule of the app joins it to another.
        self._principal = Principal(
            "app",
            batch.tenant_id,
            batch.app_id,
            key_id="",
            actor="batch",
            run_rules=("interaction_metadata",),
        )
        self._reader: Iterator[BatchLine] = iter(())
        self._wanted: Callable[[int], bool] = bool
        """Returns whether this pass over the file reads a line: the first one if it has no result."""
        self._read_all = False
        self._last = 0
        """Number of the last line that was read in this pass over the file."""
        self._aside: set[int] = set()
        """Lines of the next pass: their users were held when they were read or sent."""
        self._user_holds: dict[str, float] = {}
        """Times until which lines of users are not sent."""
        self._pass_s = clock()
        """Time at which this pass began."""
        self._ready: deque[_Entry] = deque()
        """Lines that were read or not accepted, the next one first."""
        self._sent: dict[asyncio.Task[_Called], _Entry] = {}
        self._window = options.parallel_calls
        """Calls that may be in flight: halved at each rejection, one more with each answer."""
        self._hold = SendHold(clock)
        self._save_s = self._check_s = 0.0
        self._rejections = 0
        """Holds in a row without an answer between them."""
        self._results: list[Result] = []
        self._woken = asyncio.Event()
        self._stopped = self._pausing = self._lost = False

    # --- from outside -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Cancel its calls and end it: its row says that it was cancelled."""
        self._stopped = True
        self._woken.set()

    def pause(self) -> None:
        """Send nothing more; the next process continues."""
        self._pausing = True
        self._woken.set()

    def lose(self) -> None:
        """Stop at once: another process has the batch."""
        self._lost = True
        self.pause()

    # --- the work ---------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run the batch to its end, or until the server stops."""
        begin_request("")  # its log lines are not those of a request
        try:
            if self.batch.in_progress_at is None and not await self._check():
                return
            if self.batch.finalizing_at is None:
                await self._run()
            if self._pausing:
                if not self._lost:
                    await to_its_end(repository.release, self._sessions, self.batch)
                return
            await self._finish()
        except RowLeaseLostError:
            logger.warning("batch %s is run by another process", self.batch.id)
        except Exception as error:
            logger.exception("batch %s cannot continue now", self.batch.id)
            gone = isinstance(error, FileNotFoundError)
            if gone or self._now() >= self.batch.expires_at + GIVE_UP:
                text = "its file is gone" if gone else "its files cannot be read or written"
                await self._database(self._fail, [LineError(None, "file_error", text).plain])
            else:
                await self._database(self._retry_later)
        finally:
            await self._cancel_calls()
            for entry in (*self._ready, *self._sent.values()):
                entry.memory.release()

    @property
    def _expired(self) -> bool:
        return self._now() >= self.batch.expires_at

    @property
    def _ending(self) -> bool:
        return self._stopped or self._pausing or self._expired

    async def _check(self) -> bool:
        """Check the file; return False if the batch has ended with its errors."""
        if self._stopped or self.batch.state == "cancelling":
            self._stopped = True
            return True
        total, errors = await self._database(self._checked)
        if self._calls is None and not errors:
            errors = [LineError(None, "invalid_endpoint", "the server has no such endpoint").plain]
        if errors:
            for error in errors:
                error["message"] = fitting_text(str(error["message"]), TEXT_CHARS)
            await self._database(self._fail, errors)
            return False
        await self._database(repository.begin, self._sessions, self.batch, self._now(), total)
        return True

    def _checked(self) -> tuple[int, list[dict[str, object]]]:
        return lines.check(
            self._files.content(self.batch.input_file_id),
            self.batch.endpoint,
            self._options.max_lines,
            self._options.max_line_bytes,
        )

    def _fail(self, errors: list[dict[str, object]]) -> None:
        now = self._now()
        with self._sessions.begin() as session:
            repository.set_values(
                session, self.batch, now, state="failed", errors=errors, ended_at=now
            )
            repository.BATCHES.lease(self.batch).end(session)

    async def _run(self) -> None:
        """Make the calls of the lines that have no result."""
        batch = self.batch
        if self._stopped or batch.state == "cancelling" or self._expired:
            return
        ended = await self._database(repository.ended_lines, self._sessions, batch.id)
        self._wanted = lambda number: number not in ended
        self._reader = self._lines_left()
        while not self._ending:
            self._collect()
            await self._save()
            await self._check_bound()
            await self._send()
            if self._read_all and not (self._ready or self._sent or self._results or self._aside):
                return
            await self._wait()
            if self._read_all and self._aside and self._clock() >= self._next_pass_s():
                self._begin_pass()
        if not self._pausing:
            await self._cancel_calls()
        elif self._sent and not self._lost:
            await asyncio.wait(self._sent)  # control ends them when it drains
        self._collect()
        if self._results and not self._lost:
            await self._save(now=True)

    async def _send(self) -> None:
        """Send lines up to the window, as far as there is memory for them."""
        while (
            not self._hold.lasts()
            and len(self._sent) < self._window
            and not self._ending
            and (entry := await self._next()) is not None
        ):
            name = f"batch {self.batch.id}: line {entry.line.number}"
            self._sent[asyncio.create_task(self._call(entry.line), name=name)] = entry

    async def _next(self) -> _Entry | None:
        """Return the next line, or None if there is none, or no memory for it now."""
        if not self._ready and not self._read_all:
            line = await self._database(self._read_line)
            if line is None:
                self._read_all = True
            else:
                memory = BodyReservation(self._memory, self.batch.tenant_id)
                self._ready.append(_Entry(line, memory))
        if not self._ready:
            return None
        try:
            self._ready[0].memory.grow(len(self._ready[0].line.body))
        except (RateLimitedError, UnavailableError):
            self._hold.extend(1.0)
            return None
        return self._ready.popleft()

    def _read_line(self) -> BatchLine | None:
        try:
            line = next(self._reader, None)
        except (OperationalError, InterfaceError):  # a generator that raised has ended
            self._reader = self._lines_left()
            raise
        if line is not None:
            self._last = line.number
        return line

    def _lines(self, wanted: Callable[[int], bool]) -> Iterator[BatchLine]:
        content = self._files.content(self.batch.input_file_id)
        for number, raw in lines.split(content, self._options.max_line_bytes):
            if wanted(number):
                yield lines.parse(number, raw, self.batch.endpoint)

    def _lines_left(self) -> Iterator[BatchLine]:
        """Yield the lines of this pass after the last one that was read; put held users' aside."""
        wanted, last = self._wanted, self._last
        for line in self._lines(lambda number: number > last and wanted(number)):
            if self._user_holds.get(line.user, 0.0) > self._clock():
                self._aside.add(line.number)
            else:
                yield line

    def _next_pass_s(self) -> float:
        """Return when the lines that were put aside are read: a pass reads the whole file."""
        return max(min(self._user_holds.values()), self._pass_s + LONG_HOLD_S)

    def _begin_pass(self) -> None:
        """Read the lines that were put aside."""
        self._pass_s = now_s = self._clock()
        self._user_holds = {user: at for user, at in self._user_holds.items() if at > now_s}
        self._wanted, self._aside = self._aside.__contains__, set()
        self._last, self._read_all, self._reader = 0, False, self._lines_left()

    async def _wait(self) -> None:
        """Wait until a call ends, the batch is woken, or something is due."""
        until_s = self._clock() + (self.batch.expires_at - self._now()).total_seconds()
        if self._results:
            until_s = min(until_s, self._save_s)
        if self._hold.until_s is not None:
            until_s = min(until_s, self._hold.until_s)
        if self._read_all and self._aside:
            until_s = min(until_s, self._next_pass_s())
        waking = asyncio.create_task(self._woken.wait())
        await asyncio.wait(
            {waking, *self._sent},
            timeout=max(0.0, until_s - self._clock()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        waking.cancel()
        self._woken.clear()

    def _collect(self) -> None:
        """Take the results of ended calls; lines that were not accepted are ready again."""
        for sent in [each for each in self._sent if each.done()]:
            entry = self._sent.pop(sent)
            called = _Called() if sent.cancelled() else sent.result()
            if called.result is not None:
                self._results.append(called.result)
                self._window = min(self._window + 1, self._options.parallel_calls)
                self._rejections = 0
            elif called.held_s is not None and called.of_user:
                user, until_s = entry.line.user, self._clock() + called.held_s
                self._user_holds[user] = max(until_s, self._user_holds.get(user, 0.0))
                self._aside.add(entry.line.number)
            elif called.held_s is not None:
                self._rejections += self._hold.until_s is None  # one for all that were in flight
                self._window = max(1, self._window // 2)
                self._hold.extend(called.held_s)
                self._ready.appendleft(entry)
                continue
            entry.memory.release()

    async def _save(self, *, now: bool = False) -> None:
        """Save results: at once if there are many, else after a pause."""
        due = now or len(self._results) >= SAVED_AT_ONCE or self._clock() >= self._save_s
        if not self._results or not due:
            return
        saving = list(self._results)
        await self._database(repository.save, self._sessions, self.batch, saving, self._now())
        del self._results[: len(saving)]
        self._save_s = self._clock() + SAVE_S

    async def _check_bound(self) -> None:
        """Stop the batch if its results exceed the tenant's bytes; what it has is kept."""
        if self._clock() < self._check_s:
            return
        self._check_s = self._clock() + BOUND_CHECK_S
        over = await self._database(self._files.over_bounds, self.batch.tenant_id)
        if over:
            error = LineError(None, "file_space_full", over).plain
            await self._database(self._note, [error])
            self.stop()

    def _retry_later(self) -> None:
        with self._sessions.begin() as session:
            repository.BATCHES.lease(self.batch).renew(session, self._now() + RETRY)

    def _note(self, errors: list[dict[str, object]]) -> None:
        with self._sessions.begin() as session:
            repository.set_values(session, self.batch, self._now(), errors=errors)

    async def _cancel_calls(self) -> None:
        for sent in self._sent:
            sent.cancel()
        if self._sent:
            await asyncio.wait(self._sent, timeout=STOP_S)

    # --- a call -----------------------------------------------------------------------------------

    async def _call(self, line: BatchLine) -> _Called:
        """Make the call of a line, repeatedly where workers fail."""
        facts = begin_request("")
        batch_id, number = self.batch.id, line.number
        assert self._calls is not None, "the endpoint was checked"
        failures = 0
        while True:
            error: FairServeError
            try:
                answer = await self._calls.make(self._principal, line.body)
            except FairServeError as raised:
                error = raised
            except Exception:
                logger.exception("a call of a batch failed")
                error = FairServeError("internal error")
            else:
                data = lines.answer_line(batch_id, line, facts.request_id, answer)
                return _Called(Result(number, succeeded=True, data=data))
            if self._pausing:
                return _Called()  # the server stops: the next process calls it again
            retry_s = retry_after_s(error)
            left_s = (self.batch.expires_at - self._now()).total_seconds()
            waits = not is_over(error) or isinstance(error, InsufficientQuotaError)
            if waits and retry_s < left_s:
                of_user = retry_s >= LONG_HOLD_S and (error.details or {}).get("scope") == "user"
                held_s = max(retry_s, BACKOFF.pause_s(self._rejections + 1))
                return _Called(held_s=held_s, of_user=of_user)
            failures += 1
            if isinstance(error, UnavailableError | WorkerFailedError) and failures < MAX_ATTEMPTS:
                await asyncio.sleep(max(retry_s, BACKOFF.pause_s(failures)))
                continue
            data = lines.rejection_line(batch_id, line, facts.request_id, error)
            return _Called(Result(number, succeeded=False, data=data))

    # --- the end ----------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Write the files, then end the batch in one transaction, then delete its results."""
        await self._database(self._begin_finalizing)
        await self._database(self._write_files)
        await self._database(repository.delete_results, self._sessions, self.batch.id)

    def _begin_finalizing(self) -> None:
        now = self._now()
        with self._sessions.begin() as session:
            row = repository.BATCHES.lease(self.batch).locked_row(session)
            if row is None:
                raise RowLeaseLostError
            if row.finalizing_at is None:
                row.finalizing_at = now
            if row.state == "in_progress":
                row.state = "finalizing"
        self.batch = row

    def _write_files(self) -> None:
        """Write output and errors, and end the batch. If it is interrupted, it is done again.

        The batch may have ended although the answer to its commit was lost: its files stay then.
        """
        if self._has_ended():
            return
        batch, owner = self.batch, FileOwner(self.batch.tenant_id, self.batch.app_id)
        output = _Output(self._files, owner, f"{batch.id}_output.jsonl")
        errors = _Output(self._files, owner, f"{batch.id}_error.jsonl")
        try:
            self._write(output, errors)
        except BaseException:
            if not self._has_ended():
                output.discard()
                errors.discard()
            raise

    def _has_ended(self) -> bool:
        """Return whether this process has ended the batch."""
        with self._sessions() as session:
            row = read_only(session).get(Batch, self.batch.id)
        return row is not None and row.attempt == self.batch.attempt and row.ended_at is not None

    def _write(self, output: _Output, errors: _Output) -> None:
        batch = self.batch
        cancelled = batch.cancelling_at is not None
        for data in repository.results(self._sessions, batch.id, succeeded=True):
            output.write(data)
        for data in repository.results(self._sessions, batch.id, succeeded=False):
            errors.write(data)
        missing = 0
        # A batch that failed has no space for the lines that are missing.
        listed = cancelled or batch.errors is None
        if listed and batch.completed + batch.failed < batch.total:
            ended = repository.ended_lines(self._sessions, batch.id)
            for line in self._lines(lambda number: number not in ended):
                errors.write(lines.unmade_line(batch.id, line, cancelled=cancelled))
                missing += 1
        output.close()
        errors.close()
        now = self._now()
        kept = None
        if batch.output_expires_s is not None:
            kept = timedelta(seconds=batch.output_expires_s)
        with self._sessions.begin() as session:
            # Not here, too: if the commit fails, the counts of this object are read again.
            repository.BATCHES.lease(batch).end(
                session,
                state=self._final_state(session, missing),
                output_file_id=output.complete(session, kept),
                error_file_id=errors.complete(session, kept),
                failed=batch.failed + missing,
                ended_at=now,
            )

    def _final_state(self, session: Session, missing: int) -> str:
        row = repository.BATCHES.lease(self.batch).locked_row(session)
        if row is None:
            raise RowLeaseLostError
        if row.cancelling_at is not None:
            return "cancelled"
        if row.errors is not None:
            return "failed"
        return "expired" if missing else "completed"

    async def _database(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run blocking work in a thread; repeat it while the database is away.

        Raises OperationalError if the server stops first: the lease then expires.
        """
        failures = 0
        while True:
            try:
                return await to_its_end(work, *arguments, **options)
            except (OperationalError, InterfaceError) as error:
                if self._pausing:
                    raise
                failures += 1
                logger.warning(
                    "batch %s waits for the database: %s", self.batch.id, type(error).__name__
                )
                await asyncio.sleep(DATABASE_BACKOFF.pause_s(failures))


class _Output:
    """A file that exists only if something is written to it."""

    def __init__(self, files: Files, owner: FileOwner, name: str) -> None:
        self._files, self._owner, self._name = files, owner, name
        self._file_id: str | None = None
        self._size_bytes = 0

    def write(self, data: bytes) -> None:
        if self._file_id is None:
            file_id = self._files.reserve(self._owner, "batch_output", 0)
            self._writer = self._files.writer(file_id)
            self._file_id = file_id
        self._writer.write(data)
        self._size_bytes += len(data)

    def close(self) -> None:
        if self._file_id is not None:
            self._writer.close()

    def discard(self) -> None:
        if self._file_id is not None:
            self._files.drop(self._file_id, self._writer)

    def complete(self, session: Session, kept: timedelta | None) -> str | None:
        """Make the file readable and return its id; None if nothing was written."""
        if self._file_id is not None:
            self._files.complete(session, self._file_id, self._name, self._size_bytes, kept)
        return self._file_id
