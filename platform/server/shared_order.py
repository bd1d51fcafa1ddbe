"""The parts of a process that shares its order with others: log, clock, marks, speaker.

An API process applies the log and serves calls. A control process applies it, too, keeps the rows in its
journal until they are in the database, and speaks if no other does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from fairserve.platform.base.redis_client import redis_client
from fairserve.platform.console.sign_in.shared_attempts import SharedAttempts
from fairserve.platform.control.cell import BLOCK_TOKENS
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.log.clock import LogClock
from fairserve.platform.control.log.marks import (
    MarkedJournal,
    StoredMarks,
)
from fairserve.platform.control.log.order import LogOrder
from fairserve.platform.control.log.redis_log import RedisLog, cancel
from fairserve.platform.control.log.shared_cell import EntryId
from fairserve.platform.control.log.speaker import Speaker
from fairserve.platform.control.log.succession import CellMismatchError
from fairserve.platform.control.log.wire import LogTick
from fairserve.platform.control.options import ControlOptions, control_options
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsJournal
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.server.listeners import StartError
from fairserve.platform.server.noted_time import NotedTime, cell_keys
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.completions.redis_answers import RedisAnswers
from fairserve.scheduling.locality.block_keys import BlockHasher

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
"""Longest wait of a speaker that stops for the database, in seconds."""


class SharedOrder:
    """The parts of one process. It stands in for the lease of the database, which nobody holds alone."""

    previous_alive_at: float | None = None
    """No process knows when the cell was alive last: its log does."""

    def __init__(self, settings: Settings, hasher: KeyHasher) -> None:
        self.marks, self.clock = StoredMarks(), LogClock()
        self.lost = threading.Event()
        """Set once this process cannot follow the log any more."""
        self.problem = ""
        self.speaker: Speaker | None = None
        self.order: LogOrder | None = None
        role = settings.control.role
        self._speaks_when_silent = role == "control"
        self._options = control_options(settings.control, settings.tenancy)
        self._hasher = hasher
        self._on_lost: Callable[[], object] = lambda: None
        self._task: asyncio.Task[None] | None = None
        self.keys = cell_keys(hasher.secret_id)
        """The beginning of the keys of the cell in Redis."""
        self._log = RedisLog(settings.background.redis_url, self.keys)
        self._client = redis_client(settings.background.redis_url)
        """Connections of requests that wait for Redis."""
        self.seed = int.from_bytes(self._subkey("order")[:8], "big") >> 1
        """Seed of all processes of the cell: their keys of prompts are equal."""

    # --- the parts --------------------------------------------------------------------------------

    def make(self, control: ControlService, journal: RowsJournal) -> LogOrder:
        """Return the order of a control service."""
        keys = BlockHasher(self.seed, BLOCK_TOKENS)
        on_tick: Callable[[EntryId, LogTick], None] = self.marks.ticked
        full: Callable[[], str] = str
        if isinstance(journal, Journal):
            marked = MarkedJournal(journal, self.marks)
            on_tick, full = marked.ticked, marked.full
        self.order = LogOrder(
            self._log,
            control.cell,
            control.execute,
            self.clock,
            _agreement(self._options),
            lambda call: keys.keys(call.token_ids, call.salt, call.adapter),
            on_replaced=control.replaced,
            on_tick=on_tick,
            on_failure=self._fail,
            on_followed=control.answered,
            hurries=control.awaits_grants,
        )
        shared_cell = self.order.shared_cell
        self.marks.last_read = lambda: shared_cell.last
        if self._speaks_when_silent:
            self.speaker = Speaker(
                self._log,
                self.order,
                stored=lambda: self.marks.stored_entry,
                full=full,
                on_change=self._spoke,
                on_begun=self.marks.began,
            )
        return self.order

    def answers(self) -> RedisAnswers:
        """Return the idempotent answers of all servers."""
        return RedisAnswers(self._client, self.keys, self._subkey("idempotency"))

    def attempts(self) -> SharedAttempts:
        """Return the sign-ins at all servers."""
        return SharedAttempts(self._client, self.keys, self._subkey("attempts"))

    def noted_time(self, sessions: SessionFactory) -> NotedTime:
        """Return what notes the time of the cell while this process speaks."""
        order = self.order
        assert order is not None, "it is made"
        return NotedTime(
            sessions,
            self._log,
            self.keys,
            now_ms=lambda: order.shared_cell.last.ms,
            speaks=lambda: order.speaks,
        )

    def _subkey(self, label: str) -> bytes:
        secret = self._hasher.subkey(label, self._hasher.secret_id)
        assert secret is not None, "it is of the present secret key"
        return secret

    async def attach(self) -> bool:
        """Get the state of the cell; return true if this process began it, without an earlier one.

        An API process waits until a control process has begun it. Raises StartError if this process may
        not take part in the cell.
        """
        assert self.order is not None, "it is made"
        try:
            await self.order.attach()
        except CellMismatchError as error:
            await self.order.log.close()
            await self._client.aclose()
            raise StartError(str(error)) from error
        return self.speaker is not None and self.speaker.fresh

    def start(self) -> None:
        """Speak from now on, if this process may."""
        if self.speaker is not None:
            self._task = asyncio.create_task(self.speaker.run(), name="speaker")
            self._task.add_done_callback(self._speaker_ended)

    def _speaker_ended(self, task: asyncio.Task[None]) -> None:
        """Leave the cell if the speaker has failed: another process may speak."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the speaker has failed", exc_info=error)
            self._fail(f"the speaker has failed: {type(error).__name__}")

    async def stop(self, flush: Callable[[float], bool]) -> None:
        """Write the rows so far if this process writes them, and let another speak.

        No request needs Redis any more.
        """
        await self._client.aclose()
        if self._task is not None and self.speaker is not None:
            await cancel(self._task)
            if self.marks.writes and not await asyncio.to_thread(flush, FLUSH_S):
                logger.warning("the database does not answer: the next speaker writes the rest")
            await self.speaker.leave()

    def _spoke(self, speaks: bool) -> None:
        self.marks.speaks = speaks
        if self.on_speaking is not None and speaks:
            self.on_speaking()

    on_speaking: Callable[[], None] | None = None
    """Called when this process begins to speak."""

    # --- in place of the lease --------------------------------------------------------------------

    def require(self) -> None:
        """Raise UnavailableError if nothing new may be accepted."""
        assert self.order is not None, "it is made"
        self.order.require()

    @property
    def over(self) -> bool:
        """True if nothing new is accepted."""
        return self.order is None or not self.order.accepts

    def check(self, session: Session) -> None:
        """Allow every write: rows are equal in all processes, and others have locks of their own."""

    def call_when_lost(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` once this process cannot follow the log; at once if it cannot now."""
        self._on_lost = listener
        if self.lost.is_set():
            listener()

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self.lost.set()
        self._on_lost()

    def close(self) -> None:
        """Do nothing: the order closes the log."""


def _agreement(options: ControlOptions) -> dict[str, Any]:
    """Return what decides about calls and is not in the state of the cell."""
    admission = options.admission
    return {
        "max_queue_wait_s": options.max_queue_wait_s,
        "max_queued_calls": options.max_queued_calls,
        "max_tenant_share": options.tenant_share,
        "interaction_idle_timeout_s (doubled)": options.reopen_grace_s,
        "quota_enforcement": [admission.contracts, admission.rates_cut_runs],
    }
