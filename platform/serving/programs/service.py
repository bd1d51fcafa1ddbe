"""Manage the programs of this server: start, follow, cancel, and continue those of servers that ended.

A program is saved before it is answered for, and runs where its row is claimed
(:mod:`fairserve.platform.serving.claims`). Bounded: live programs in all and of one app, and what they
hold in memory when a new one comes or is claimed.

Weakness: which program is at which server is decided by who takes it first. One that another server
runs is shown as it is saved, and its followers get the events of its calls, not those of its nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from fairserve.interactions.profiles.profile import DEFAULT_PROFILE, AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.interactions.programs.program import Program, parse_program
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.interactions.programs.program_task import call_name
from fairserve.interactions.tracking.identity import core_call_id, core_run_id
from fairserve.interactions.tracking.run import RestoredCall, RestoredRun
from fairserve.platform.base.bulkhead import work_for
from fairserve.platform.base.errors import (
    ConflictError,
    FairServeError,
    NotFoundError,
    RateLimitedError,
    UnavailableError,
)
from fairserve.platform.base.shared_limit import share_of
from fairserve.platform.base.subscribers import Subscribers
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.control.messages import RunView
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.base import TEXT_CHARS, utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.leases import RowLeaseLostError
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.programs import ProgramRow
from fairserve.platform.db.rows import has_key
from fairserve.platform.db.session import unavailable
from fairserve.platform.fleet.models import Models
from fairserve.platform.serving.claims import LEASE, keep_claims
from fairserve.platform.serving.in_database import in_database
from fairserve.platform.serving.interactions.repository import calls as ended_calls
from fairserve.platform.serving.programs import repository
from fairserve.platform.serving.programs.declaration import check_models
from fairserve.platform.serving.programs.events import ProgramEvent
from fairserve.platform.serving.programs.execution import ProgramExecution, ProgramExecutionOptions
from fairserve.platform.serving.programs.repository import ProgramChange, ProgramKey, SavedProgram
from fairserve.platform.serving.programs.schemas import ProgramOut, program_out
from fairserve.platform.serving.programs.store import ProgramGoneError, ProgramStore
from fairserve.platform.serving.programs.task_calls import ProgramOwner, TaskCalls
from fairserve.platform.tenancy.apps import repository as apps
from fairserve.platform.tenancy.profiles.repository import profiles_in_force

logger = logging.getLogger(__name__)

Listener = Callable[[ProgramEvent], None]

BY_CLIENT = "cancelled by its client"
CLAIMED_AT_ONCE = 64
"""Programs of one claim."""
CANCEL_POLL_S = 0.2
"""Interval at which a cancellation looks whether the process of a program has ended it."""


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Bounds of programs."""

    max_live: int = 1_000
    tenant_share: float = 1 / 4
    """Share of the programs, and of their bytes, that one tenant may have."""
    max_live_per_app: int = 200
    max_bytes: int = 512 * 1024 * 1024
    cancel_wait_s: float = 15.0
    """Seconds that a client waits until its cancellation is saved."""
    execution: ProgramExecutionOptions = field(default_factory=ProgramExecutionOptions)
    learning: LearningOptions | None = None
    """Options of learned profiles; None: profiles are not learned."""


@dataclass(slots=True)
class _Live:
    """A live program."""

    execution: ProgramExecution
    declared_bytes: int
    task: asyncio.Task[None] | None = None

    @property
    def size_bytes(self) -> int:
        return self.declared_bytes + self.execution.run.output_bytes


class Programs:
    """The programs of this server. Belongs to one event loop; ``start`` and ``close`` once each."""

    def __init__(
        self,
        sessions: SessionFactory,
        control: ControlService,
        models: Models,
        calls: TaskCalls,
        options: ProgramOptions = ProgramOptions(),
    ) -> None:
        self._sessions = sessions
        self._control = control
        self._models = models
        self._calls = calls
        self._options = options
        self._store = ProgramStore(sessions)
        self._live: dict[ProgramKey, _Live] = {}
        self._coming: dict[ProgramKey, int] = {}
        """Attempts of programs whose runs are not open yet; 0: it is being saved."""
        self._followers: Subscribers[ProgramKey, ProgramEvent] = Subscribers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pausing = False
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Continue the programs of processes that ended. Their calls are in the ledger.

        Raises SQLAlchemyError.
        """
        self._loop = asyncio.get_running_loop()
        self._store.start()
        while await self._claim():
            await self._renew()
        work = keep_claims("programs", self._renew, self._claim)
        self._task = asyncio.create_task(work, name="programs")

    def pause(self) -> None:
        """Claim no more, and send no more calls; outputs that complete before :meth:`close` are kept."""
        self._pausing = True
        for live in self._live.values():
            live.execution.pause()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop once calls have ended or ``grace_s`` is over; the next start continues the programs."""
        self.pause()
        if self._task is not None:  # a renewal would undo that the programs are handed over
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    # --- requests ---------------------------------------------------------------------------------

    async def submit(
        self, owner: ProgramOwner, declaration: Mapping[str, Any], program: Program, size_bytes: int
    ) -> RunView:
        """Save a program and start it. ``program`` is the parsed ``declaration``.

        Raises ConflictError if the id is used, RateLimitedError or UnavailableError if there are too
        many, NotFoundError for a model; nothing is left of it then. Its run opens once control has the
        event, which may take as long as a lease: if this process was suspended, another one has
        continued the program, as that of a process that has ended.
        """
        key = owner.key
        self._check_capacity(key, size_bytes)
        check_models(program, self._models, key.app, key.run_id)
        saved = SavedProgram(
            key, owner.user, declaration, program.limits, "running", "", utc_now(), attempt=1
        )
        self._coming[key] = 0
        try:
            profile = await asyncio.to_thread(self._profile, key)
            run = ProgramRun(program, profile)
            await self._insert(saved)
            self._coming[key] = saved.attempt
            core_id = core_run_id(key.app, key.run_id)
            try:
                view = await self._control.open_interaction(
                    core_id, key.tenant, key.app, owner.user, declared=True
                )
            except FairServeError:
                if await self._store.remove(key, saved.attempt):
                    raise
                continued = await self._control.interaction(core_id)
                if continued is None:
                    raise
                return continued
            self._begin(saved, run, size_bytes)
        finally:
            del self._coming[key]
        return view

    async def cancel(self, key: ProgramKey, reason: str = BY_CLIENT) -> None:
        """Cancel a program, wherever it runs, and wait until that is saved. No effect if it has ended.

        Raises UnavailableError if it takes too long: its calls are stopped, and it will be cancelled.
        """
        live = self._live.get(key)
        if live is not None:
            await self._end([live], reason)
        else:
            await self._end_elsewhere(has_key(ProgramRow, key), reason)

    async def cancel_of_user(self, reason: str, tenant_id: str, user: str) -> None:
        """Cancel the live programs of a user, and wait as :meth:`cancel` does."""
        owned = (
            live
            for key, live in self._live.items()
            if key.tenant == tenant_id and live.execution.owner.user == user
        )
        await self._end(list(owned), reason)
        await self._end_elsewhere(repository.of_user(tenant_id, user), reason)

    async def _end(self, ending: Sequence[_Live], reason: str) -> None:
        for live in ending:
            live.execution.cancel(reason)
        tasks = [live.task for live in ending if live.task is not None]
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=self._options.cancel_wait_s)
        if pending:
            raise UnavailableError(
                "the program's calls are stopped, and the database does not answer",
                headers={"Retry-After": "5"},
            )

    async def _end_elsewhere(self, which: ColumnElement[bool], reason: str) -> None:
        try:
            await to_its_end(repository.request_cancel, self._sessions, which, reason)
            for _ in range(round(self._options.cancel_wait_s / CANCEL_POLL_S)):
                if not await to_its_end(repository.any_running, self._sessions, which):
                    return
                await asyncio.sleep(CANCEL_POLL_S)
        except OperationalError as error:
            raise unavailable() from error
        raise UnavailableError(
            "the program is going to be cancelled; its server has not confirmed it yet",
            headers={"Retry-After": "5"},
        )

    def cancel_of(
        self, reason: str, *, app_id: str = "", tenant_id: str = "", user: str = ""
    ) -> None:
        """Cancel the live programs of an app, a tenant, or one user; from any thread, does not wait.

        Other processes find in the database that their owner is stopped.
        """

        def cancel() -> None:
            for key, live in self._live.items():
                owned = app_id == key.app or tenant_id == key.tenant
                if owned and user in ("", live.execution.owner.user):
                    live.execution.cancel(reason)

        assert self._loop is not None, "programs have not started"
        self._loop.call_soon_threadsafe(cancel)

    def is_live(self, key: ProgramKey) -> bool:
        """Return True if a program runs here."""
        return key in self._live

    async def runs_elsewhere(self, key: ProgramKey) -> bool:
        """Return whether a program that does not run here has not ended; False without a database."""
        try:
            return key not in self._live and await to_its_end(
                repository.any_running, self._sessions, has_key(ProgramRow, key)
            )
        except OperationalError:
            return False

    async def view(self, key: ProgramKey) -> ProgramOut | None:
        """Return the state of a program. Raises UnavailableError for an ended one without a database."""
        live = self._live.get(key)
        if live is not None:
            return program_out(live.execution.run, live.execution.reason)
        return await in_database(self._saved_view, key)

    def watch(self, key: ProgramKey, listener: Listener, sharer: str) -> Callable[[], None]:
        """Call ``listener`` with each event of a live program. Return the function that unsubscribes.

        ``sharer`` and errors are those of :meth:`ControlService.follow_run`.
        """
        return self._followers.subscribe(key, listener, sharer)

    # --- parts ------------------------------------------------------------------------------------

    def _check_capacity(self, key: ProgramKey, size_bytes: int) -> None:
        options = self._options
        if key in self._live or key in self._coming:
            raise ConflictError(f"interaction {key.run_id!r} exists already", param="id")
        of_app = sum(other.app == key.app for other in (*self._live, *self._coming))
        if of_app >= options.max_live_per_app:
            raise RateLimitedError(
                f"the app has {of_app} live programs; allowed: {options.max_live_per_app}",
                code="too_many_programs",
                headers={"Retry-After": "5"},
            )
        self._check_share(key.tenant, size_bytes)

    def _check_share(self, tenant: str, size_bytes: int) -> None:
        """Check the number of programs and their bytes, of the tenant and in all. O(programs)."""
        options = self._options
        held, held_bytes, own, own_bytes = len(self._coming), 0, 0, 0
        own += sum(key.tenant == tenant for key in self._coming)
        for key, live in self._live.items():
            size = live.size_bytes
            held, held_bytes = held + 1, held_bytes + size
            if key.tenant == tenant:
                own, own_bytes = own + 1, own_bytes + size
        if held >= options.max_live or held_bytes + size_bytes > options.max_bytes:
            raise UnavailableError(
                "too many programs are live",
                code="too_many_programs",
                headers={"Retry-After": "5"},
            )
        most = share_of(options.max_live, options.tenant_share, held - own)
        most_bytes = share_of(
            options.max_bytes, options.tenant_share, held_bytes - own_bytes, size_bytes
        )
        if own >= most or own_bytes + size_bytes > most_bytes:
            raise RateLimitedError(
                f"the tenant has {own} live programs with {own_bytes} bytes, and this one would add"
                f" {size_bytes}; allowed now: {most} programs with {most_bytes} bytes",
                code="too_many_programs",
                headers={"Retry-After": "5"},
            )

    async def _insert(self, program: SavedProgram) -> None:
        try:
            await self._store.insert(program)
        except IntegrityError as error:
            text = f"interaction {program.key.run_id!r} exists already"
            raise ConflictError(text, param="id") from error
        except OperationalError as error:
            raise unavailable() from error

    def _begin(self, saved: SavedProgram, run: ProgramRun, size_bytes: int) -> None:
        key = saved.key
        age_s = (utc_now() - saved.created_at).total_seconds()
        publish = partial(self._followers.publish, key)
        execution = ProgramExecution(
            ProgramOwner(key, saved.user),
            run,
            self._control,
            self._calls,
            self._store,
            self._options.execution,
            attempt=saved.attempt,
            left_s=self._options.execution.time_limit_s - age_s,
            publish=publish,
        )
        live = self._live[key] = _Live(execution, size_bytes)

        async def work() -> None:
            work_for(key.tenant)
            try:
                await execution.work()
            except Exception:
                logger.exception("program %s failed", key.run_id)
            finally:
                del self._live[key]
                if run.done or execution.lost:
                    publish(program_out(run, execution.reason))

        live.task = asyncio.create_task(work(), name=f"program {key.run_id}")

    def _profile(self, key: ProgramKey) -> AppProfile:
        try:
            with self._sessions() as session:
                app = apps.get(read_only(session), key.tenant, key.app)
                return (
                    DEFAULT_PROFILE
                    if app is None
                    else (profiles_in_force(session, [app], self._options.learning)[app.id])
                )
        except OperationalError as error:
            raise unavailable() from error

    def _saved_view(self, key: ProgramKey) -> ProgramOut | None:
        saved = repository.find(self._sessions, key)
        if saved is None:
            return None
        program = parse_program(saved.declaration, saved.limits)
        run = ProgramRun.restore(program, saved.run_state)
        # A program that is ended from outside has a run that has not ended.
        return program_out(run, saved.reason).model_copy(update={"state": saved.state})

    # --- claims -----------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew the leases of programs; end those that are lost, or were cancelled elsewhere."""
        attempts = {key: attempt for key, attempt in self._coming.items() if attempt}
        attempts |= {key: live.execution.attempt for key, live in self._live.items()}
        leases = [repository.lease(*each) for each in attempts.items()]
        if not leases:
            return
        lost, stops = await to_its_end(repository.renew, self._sessions, leases, utc_now())
        for key, live in self._live.items():
            if key in lost:
                live.execution.lose()
            elif key in stops:
                live.execution.cancel(stops[key])

    async def _claim(self) -> bool:
        """Claim and continue programs; return False if none waits, or there is no room for more."""
        options, live = self._options, self._live.values()
        room = options.max_live - len(live) - len(self._coming)
        full = sum(each.size_bytes for each in live) >= options.max_bytes
        if self._pausing or full or room <= 0:
            return False
        own = {tuple(key): key.tenant for key in (*self._live, *self._coming)}
        most = min(room, CLAIMED_AT_ONCE)
        rows = await to_its_end(
            repository.PROGRAMS.claim, self._sessions, own, utc_now(), LEASE, most=most
        )
        for row in rows:
            await self._take_up(row)
        if rows:
            logger.warning("%d programs continue whose server has ended", len(rows))
        return bool(rows)

    async def _take_up(self, row: ProgramRow) -> None:
        key = ProgramKey(row.tenant_id, row.app_id, row.id)
        try:
            found = await to_its_end(self._load, key)
            if found is None or found[0].attempt != row.attempt:
                return  # another process claimed it while the database was slow
            saved, calls, profile, stop = found
            run = ProgramRun.restore(
                parse_program(saved.declaration, saved.limits), saved.run_state, profile
            )
            core_id = core_run_id(key.app, key.run_id)
            restored = RestoredRun(
                core_id,
                (key.tenant, key.app, saved.user),
                tuple(_calls_before(core_id, calls, saved)),
                declared=True,
            )
            with contextlib.suppress(ConflictError):  # control did not end with the process
                await self._control.restore_interaction(restored, saved.created_at.timestamp())
        except (SQLAlchemyError, UnavailableError):
            logger.exception("program %s is continued when its lease has run out", key.run_id)
            return
        except Exception as error:  # none of them may keep the others from their continuation
            logger.exception("program %s cannot continue", key.run_id)
            await self._fail(key, row.attempt, f"it could not go on after a restart: {error}")
            return
        self._begin(saved, run, len(str(saved.declaration)))
        live = self._live[key].execution
        if stop:
            live.cancel(stop)
        if self._pausing:
            live.pause()

    async def _fail(self, key: ProgramKey, attempt: int, reason: str) -> None:
        """End a program that cannot be continued; its run first, which control may have still."""
        core_id = core_run_id(key.app, key.run_id)
        change = ProgramChange(key, attempt, {}, "failed", reason[:TEXT_CHARS], utc_now())
        try:
            with contextlib.suppress(ConflictError, NotFoundError):
                await self._control.close_interaction(core_id, cancel=False, failed=True)
            await self._store.save(change)
        except (UnavailableError, ProgramGoneError, RowLeaseLostError) as error:
            logger.warning("program %s is not ended: %s", key.run_id, type(error).__name__)

    def _load(
        self, key: ProgramKey
    ) -> tuple[SavedProgram, Sequence[LedgerCall], AppProfile, str] | None:
        saved = repository.find(self._sessions, key)
        if saved is None:
            return None
        with self._sessions() as session:
            stops = repository.stops(read_only(session), [key])
        calls = ended_calls(self._sessions, *key)
        return saved, calls, self._profile(key), stops.get(key, "")


def _calls_before(
    core_id: str, rows: Sequence[LedgerCall], saved: SavedProgram
) -> list[RestoredCall]:
    """Return the calls of a run before a restart, those that are not in the ledger yet included."""
    calls = {
        row.name or row.call_id: RestoredCall(
            core_call_id(core_id, row.name or row.call_id),
            tuple(core_call_id(core_id, parent) for parent in row.parents or ()),
            row.input_tokens + row.system_tokens + row.output_tokens,
        )
        for row in rows
    }
    for task, record in saved.steps["tasks"].items():
        name = call_name(task, record["attempt"])
        if record["state"] == "done" and name not in calls:
            calls[name] = RestoredCall(core_call_id(core_id, name), (), 0)
    return list(calls.values())
