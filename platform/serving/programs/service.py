"""Manage the programs of this server: start, follow, cancel, and continue them after a restart.

A program is saved before it is answered for. Bounded: live programs in all and of one app, and what they
hold in memory when a new one comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.exc import IntegrityError, OperationalError

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
    RateLimitedError,
    UnavailableError,
)
from fairserve.platform.base.shared_limit import share_of
from fairserve.platform.base.subscribers import Subscribers
from fairserve.platform.control.messages import RunView
from fairserve.platform.control.port import ControlPort
from fairserve.platform.db.base import TEXT_CHARS, utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.session import unavailable
from fairserve.platform.fleet.models import Models
from fairserve.platform.serving.in_database import in_database
from fairserve.platform.serving.interactions.repository import calls as ended_calls
from fairserve.platform.serving.programs import repository
from fairserve.platform.serving.programs.declaration import check_models
from fairserve.platform.serving.programs.events import ProgramEvent
from fairserve.platform.serving.programs.execution import ProgramExecution, ProgramExecutionOptions
from fairserve.platform.serving.programs.repository import ProgramChange, ProgramKey, SavedProgram
from fairserve.platform.serving.programs.schemas import ProgramOut, program_out
from fairserve.platform.serving.programs.store import ProgramStore
from fairserve.platform.serving.programs.task_calls import ProgramOwner, TaskCalls
from fairserve.platform.tenancy.apps import repository as apps
from fairserve.platform.tenancy.profiles.repository import profiles_in_force

logger = logging.getLogger(__name__)

Listener = Callable[[ProgramEvent], None]

BY_CLIENT = "cancelled by its client"


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
        control: ControlPort,
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
        self._coming: set[ProgramKey] = set()
        """Programs that are being saved before they start."""
        self._followers: Subscribers[ProgramKey, ProgramEvent] = Subscribers()
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Continue the programs of the last process. Their calls are in the ledger.

        Raises SQLAlchemyError.
        """
        self._loop = asyncio.get_running_loop()
        self._store.start()
        left = await asyncio.to_thread(repository.running, self._sessions)
        if not left:
            return
        logger.warning("%d programs were live when the server stopped", len(left))
        for key, stopped in left:
            await self._take_up(key, stopped)

    def pause(self) -> None:
        """Send no more calls; outputs that complete before :meth:`close` are kept."""
        for live in self._live.values():
            live.execution.pause()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop once calls have ended or ``grace_s`` is over; the next start continues the programs."""
        self.pause()
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
        many, NotFoundError for a model; nothing is left of it then.
        """
        key = owner.key
        self._check_capacity(key, size_bytes)
        check_models(program, self._models, key.app, key.run_id)
        saved = SavedProgram(
            key, owner.user, declaration, program.limits, "running", "", created_at=utc_now()
        )
        self._coming.add(key)
        try:
            profile = await asyncio.to_thread(self._profile, key)
            run = ProgramRun(program, profile)
            await self._insert(saved)
            try:
                view = await self._control.open_interaction(
                    core_run_id(key.app, key.run_id),
                    key.tenant,
                    key.app,
                    owner.user,
                    declared=True,
                )
            except FairServeError:
                await self._store.remove(key)
                raise
            self._begin(owner, run, size_bytes, self._options.execution.time_limit_s)
        finally:
            self._coming.discard(key)
        return view

    async def cancel(self, key: ProgramKey, reason: str = BY_CLIENT) -> None:
        """Cancel a program, and wait until that is saved. No effect if it is not live.

        Raises UnavailableError if it takes too long: its calls are stopped, and it will be cancelled.
        """
        live = self._live.get(key)
        if live is not None:
            await self._end([live], reason)

    async def cancel_of_user(self, reason: str, tenant_id: str, user: str) -> None:
        """Cancel the live programs of a user, and wait as :meth:`cancel` does."""
        owned = (
            live
            for key, live in self._live.items()
            if key.tenant == tenant_id and live.execution.owner.user == user
        )
        await self._end(list(owned), reason)

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

    def cancel_of(self, reason: str, *, app_id: str = "", tenant_id: str = "") -> None:
        """Cancel the live programs of an app or a tenant; from any thread, does not wait."""

        def cancel() -> None:
            for key, live in self._live.items():
                if app_id == key.app or tenant_id == key.tenant:
                    live.execution.cancel(reason)

        assert self._loop is not None, "programs have not started"
        self._loop.call_soon_threadsafe(cancel)

    def is_live(self, key: ProgramKey) -> bool:
        """Return True if a program has not ended."""
        return key in self._live

    async def view(self, key: ProgramKey) -> ProgramOut | None:
        """Return the state of a program. Raises UnavailableError for an ended one without a database."""
        live = self._live.get(key)
        if live is not None:
            return program_out(live.execution.run, live.execution.reason)
        return await in_database(self._saved_view, key)

    def watch(self, key: ProgramKey, listener: Listener, sharer: str) -> Callable[[], None]:
        """Call ``listener`` with each event of a live program. Return the function that unsubscribes.

        ``sharer`` and errors are those of :meth:`ControlPort.follow_run`.
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

    def _begin(self, owner: ProgramOwner, run: ProgramRun, size_bytes: int, left_s: float) -> None:
        key = owner.key

        publish = partial(self._followers.publish, key)
        execution = ProgramExecution(
            owner,
            run,
            self._control,
            self._calls,
            self._store,
            self._options.execution,
            left_s=left_s,
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
                if run.done:
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

    # --- after a restart --------------------------------------------------------------------------

    async def _take_up(self, key: ProgramKey, stopped: str) -> None:
        try:
            found = await asyncio.to_thread(self._load, key)
            if found is None:
                return
            saved, calls, profile = found
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
            await self._control.restore_interaction(restored, saved.created_at.timestamp())
        except Exception as error:  # none of them may keep the server from its start
            logger.exception("program %s cannot continue", key.run_id)
            reason = f"it could not go on after a restart: {error}"[:TEXT_CHARS]
            change = ProgramChange(key, state="failed", reason=reason, ended_at=utc_now())
            await self._store.save(change)
            return
        owner = ProgramOwner(key, saved.user)
        size_bytes = len(str(saved.declaration))
        self._begin(owner, run, size_bytes, self._left_s(saved.created_at))
        if stopped:
            self._live[key].execution.cancel(stopped)

    def _load(
        self, key: ProgramKey
    ) -> tuple[SavedProgram, Sequence[LedgerCall], AppProfile] | None:
        saved = repository.find(self._sessions, key)
        if saved is None:
            return None
        calls = ended_calls(self._sessions, *key)
        return saved, calls, self._profile(key)

    def _left_s(self, created_at: datetime) -> float:
        age_s = (utc_now() - created_at).total_seconds()
        return self._options.execution.time_limit_s - age_s


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
