"""Run one program: make the calls that its run names as ready, and report their ends to the run.

Changes are saved before the calls that follow from them are sent, so that a restart repeats nothing that
has ended. A call that was rejected, or found no capacity, is sent again after its ``Retry-After``,
within the program's time limit; this uses up no retry. At most ``parallel_calls`` of the ready calls are
sent at a time, those on the longest path to the end first.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from fairserve.engine.backoff import Backoff
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.interactions.programs.program_task import Task, call_name
from fairserve.interactions.tracking.identity import core_run_id
from fairserve.platform.base.errors import (
    ConflictError,
    FairServeError,
    NotFoundError,
    UpstreamError,
)
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.leases import RowLeaseLostError
from fairserve.platform.serving.programs.events import ProgramEvent, events_of
from fairserve.platform.serving.programs.repository import ProgramChange
from fairserve.platform.serving.programs.store import ProgramGoneError, ProgramStore
from fairserve.platform.serving.programs.task_calls import ProgramOwner, TaskCalls
from fairserve.platform.serving.rejected_calls import is_over, retry_after_s
from fairserve.platform.serving.send_hold import SendHold

logger = logging.getLogger(__name__)

OF_ONE_MODEL = frozenset({"queue_full", "starting"})
"""Codes of NOT_ACCEPTED that do not concern calls of other models."""
LAST_WAIT_S = 30.0
STOP_S = 5.0
"""Seconds within which calls that control has stopped must end."""

Publish = Callable[[ProgramEvent], None]


@dataclass(frozen=True, slots=True)
class ProgramExecutionOptions:
    """Bounds of one program."""

    parallel_calls: int = 32
    time_limit_s: float = 3600.0
    first_wait_s: float = 1.0
    """First wait in seconds before a call that was not accepted is sent again; it doubles each time."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of an attempt: an output or a reason."""

    task: Task
    output: str | None = None
    reason: str = ""
    again: bool = False
    """It may be retried, which uses up a retry."""
    interrupted: bool = False
    """It must be retried, which uses up no retry."""


class ProgramExecution:
    """A live program. Belongs to one event loop; :meth:`work` is its only task."""

    def __init__(
        self,
        owner: ProgramOwner,
        run: ProgramRun,
        control: ControlService,
        calls: TaskCalls,
        store: ProgramStore,
        options: ProgramExecutionOptions,
        *,
        attempt: int,
        left_s: float,
        publish: Publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``attempt`` is the number of its claim, ``left_s`` the rest of its time limit in seconds."""
        self.owner = owner
        self.attempt = attempt
        self.run = run
        """State of the program; only this object changes it."""
        self.reason = ""
        """The reason why it was cancelled."""
        self._core_id = core_run_id(owner.key.app, owner.key.run_id)
        self._control = control
        self._calls = calls
        self._store = store
        self._options = options
        self._publish = publish
        self._clock = clock
        self._deadline_s = clock() + left_s
        self._numbers = count()
        self._ready: list[tuple[float, int, Task]] = []
        """A heap: the longest path first, then the first that was ready."""
        self._sent: set[asyncio.Task[_Ended]] = set()
        self._hold = SendHold(clock)
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        """Set when it was cancelled or the server stops: no call waits to be sent again."""
        self.lost = False
        """True once another process has the program."""
        self._pausing = False
        self._closed = False

    # --- from outside -----------------------------------------------------------------------------

    def cancel(self, reason: str) -> None:
        """Stop its calls and end it. The first reason counts; no effect once it is done."""
        if not self.reason and not self.run.done:
            self.reason = reason
            self._stopped.set()
            self._woken.set()

    def pause(self) -> None:
        """Send nothing more and attribute failures to the server's stop; the next start continues."""
        self._pausing = True
        self._stopped.set()
        self._woken.set()

    def lose(self) -> None:
        """Stop at once, and leave its interaction as it is: another process has the program."""
        self.lost = True
        self.pause()

    # --- the work ---------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run the program to its end, or until the server stops."""
        try:
            self._take(self.run.start())
            while not self.lost:
                await self._end_if_due()
                await self._save()
                if self.run.done:
                    await self._finish()
                    return
                self._send()
                if self._pausing and not self._sent:
                    return
                await self._wait()
                self._collect()
        except RowLeaseLostError:
            self.lose()
        except ProgramGoneError:
            await self._give_up("its app was deleted")
        except Exception as error:
            logger.exception("program %s cannot continue", self.owner.key.run_id)
            await self._give_up(f"internal error: {type(error).__name__}")
            await self._save_end()
        finally:
            for sent in self._sent:
                sent.cancel()
            if self.lost:
                logger.warning("program %s is run by another process", self.owner.key.run_id)
            elif not self.run.done:
                await self._store.release(self.owner.key, self.attempt)

    def _take(self, tasks: list[Task]) -> None:
        for task in tasks:
            heapq.heappush(self._ready, (-task.priority, next(self._numbers), task))

    def _send(self) -> None:
        if self._pausing or self._hold.lasts():
            return
        while self._ready and len(self._sent) < self._options.parallel_calls:
            task = heapq.heappop(self._ready)[-1]
            name = f"program {self.owner.key.run_id}: {task.task_id}"
            self._sent.add(asyncio.create_task(self._attempt(task), name=name))

    async def _wait(self) -> None:
        """Wait until a call ends, the program is woken, or a deadline passes."""
        now_s = self._clock()
        until_s = self._deadline_s
        if self._ready and self._hold.until_s is not None:
            until_s = min(until_s, self._hold.until_s)
        waking = asyncio.create_task(self._woken.wait())
        try:
            await asyncio.wait(
                {waking, *self._sent},
                timeout=max(0.0, until_s - now_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waking.cancel()
        self._woken.clear()

    def _collect(self) -> None:
        """Report ended calls to the run."""
        done = [sent for sent in self._sent if sent.done()]
        for sent in done:
            self._sent.discard(sent)
            ended = sent.result()
            task_id = ended.task.task_id
            if ended.output is not None:
                self._take(self.run.succeeded(task_id, ended.output))
            elif self._pausing or self.reason:
                pass  # it was stopped; the call did not fail
            elif ended.interrupted:
                self._take(self.run.interrupted(task_id))
            else:
                self._take(self.run.failed(task_id, ended.reason, again=ended.again))

    async def _end_if_due(self) -> None:
        """Stop its calls before anything is saved, which may take long without a database."""
        if self._clock() >= self._deadline_s:
            self.cancel("its time limit is over")
        if self.reason:
            self.run.cancel()
            await self._close()

    async def _save(self) -> None:
        """Save the changes, then publish them."""
        changes = self.run.changes()
        if changes["nodes"] or changes["tasks"]:
            await self._store.save(ProgramChange(self.owner.key, self.attempt, changes))
            for event in events_of(self.run, changes):
                self._publish(event)

    # --- a call -----------------------------------------------------------------------------------

    async def _attempt(self, task: Task) -> _Ended:
        """Make the call of a task, and send it again while it is not accepted."""
        parents = tuple(self._name(parent) for parent in task.parents)
        backoff, failures = Backoff(self._options.first_wait_s, LAST_WAIT_S), 0
        while True:
            try:
                output = await self._calls.make(self.owner, task, parents)
            except FairServeError as error:
                if is_over(error):
                    interrupted = error.code == "queue_timeout"
                    again = error.status >= 500 and not isinstance(error, UpstreamError)
                    if again:
                        await self._stopped_within(retry_after_s(error))
                    return _Ended(task, reason=error.message, again=again, interrupted=interrupted)
                failures += 1
                held_s = max(backoff.pause_s(failures), retry_after_s(error))
                if error.code not in OF_ONE_MODEL:
                    self._hold.extend(held_s)
                if await self._stopped_within(held_s):
                    return _Ended(task, reason=error.message)
            except Exception as error:
                logger.exception("a call of a program failed")
                return _Ended(task, reason=f"internal error: {type(error).__name__}")
            else:
                return _Ended(task, output=output)

    def _name(self, parent: str) -> str:
        """Return the call that produced a task's output: that of its last attempt."""
        return call_name(parent, self.run.attempts(parent))

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True

    # --- the end ----------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """End its interaction first: if the server dies between the two, both are done again."""
        await self._close()
        await self._control.recorded()
        await self._save_end()

    async def _save_end(self) -> None:
        key, state, reason = self.owner.key, self.run.state, self.reason
        change = ProgramChange(key, self.attempt, {}, state, reason, utc_now())
        await self._store.save(change)

    async def _give_up(self, reason: str) -> None:
        """Fail a program that cannot be saved, or not be run."""
        self.reason = self.reason or reason
        self.run.cancel()
        await self._close()

    async def _close(self) -> None:
        """End its interaction, once."""
        if self._closed:
            return
        self._closed = True
        state = self.run.state
        try:
            await self._control.close_interaction(
                self._core_id, cancel=state == "cancelled", failed=state == "failed"
            )
        except (ConflictError, NotFoundError) as error:
            logger.warning("the run of program %s: %s", self.owner.key.run_id, error.message)
        if self._sent:
            await asyncio.wait(self._sent, timeout=STOP_S)
