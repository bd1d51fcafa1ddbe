"""Writes the ledger row of every accepted call, exactly one each, and decides whether it is charged.

A rejected call has a row, too. Calls and runs that used nothing share rows once their tenant has too
many (:mod:`free_rows`).

A row is written again under its id only to waive an attempt on which no worker has worked and that its
client has repeated (see ``retries``): the ledger's upsert replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fairserve.platform.control.call_state import CallState, rejection_fields
from fairserve.platform.control.free_rows import FreeRows
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.control.port import CallListener
from fairserve.platform.control.record import plain_of
from fairserve.platform.control.retries import RecentAttempts
from fairserve.scheduling.events import CallOutcome, Refuse


class CallRecorder:
    """Writes the rows of ended and rejected calls, and of ended runs, to the journal."""

    def __init__(
        self,
        journal: Journal,
        clock: Callable[[], float],
        wall: Callable[[], float],
        listeners: Sequence[CallListener],
    ) -> None:
        self._journal = journal
        self._listeners = listeners
        self._clock = clock
        self._wall = wall
        self._free_rows = FreeRows()
        self._attempts = RecentAttempts()
        self._live: dict[str, list[CallState]] = {}
        """Live calls by fingerprint, where they have one."""

    def accepted(self, live: CallState) -> int:
        """Record an accepted call; return the number of its entry. Raises JournalUnavailableError."""
        sequence = self._journal.append("accepted", live.record_id, live.accepted_data())
        if live.fingerprint:
            self._live.setdefault(live.fingerprint, []).append(live)
        return sequence

    def repeated(self, fingerprint: str) -> None:
        """Waive one attempt that is repeated now, unless a worker works on it before it ends."""
        earlier = self._attempts.take(fingerprint, self._clock())
        if earlier is not None:
            self._write(earlier.call_id, replace(earlier, charged=False))
            return
        for live in self._live.get(fingerprint, ()):
            if not live.superseded and not live.repeats:
                live.superseded = True
                break

    def rejected(self, live: CallState, rejection: Refuse) -> None:
        """Record a rejected call, which never was live."""
        now_s = self._clock()
        self._take_row(live, now_s)
        for listener in self._listeners:
            listener.call_rejected(live, rejection.decision.reason, now_s)
        record = live.record("refused", now_s=now_s, ended_at=self._wall())
        self._close(live, replace(record, **rejection_fields(rejection)), now_s)

    def ended(
        self,
        live: CallState,
        outcome: CallOutcome,
        *,
        ttft_s: float | None = None,
        error: str = "",
        rejection: Refuse | None = None,
    ) -> None:
        """Record the end of an accepted call; called once. ``rejection``: of a call that waited."""
        self._forget(live)
        live.ttft_s = ttft_s
        now_s = self._clock()
        self._take_row(live, now_s)
        for listener in self._listeners:
            listener.call_ended(live, outcome, now_s)
        record = live.record(
            outcome,
            now_s=now_s,
            ended_at=self._wall(),
            ttft_s=ttft_s,
            error=error,
            charged=live.charged,
        )
        if rejection is not None:
            record = replace(record, **rejection_fields(rejection))
        self._close(live, record, now_s)
        if not live.own_row or rejection is not None:
            return
        if live.unused and not live.superseded and not live.repeats:
            self._attempts.remember(live.fingerprint, record, now_s)

    def dropped(self, live: CallState) -> None:
        """Remove an accepted call that the journal could not store: it has no row."""
        self._forget(live)
        for listener in self._listeners:
            listener.call_dropped(live)

    def _forget(self, live: CallState) -> None:
        same = self._live.get(live.fingerprint)
        if same is not None and live in same:
            same.remove(live)
            if not same:
                del self._live[live.fingerprint]

    def run_ended(self, run_id: str, record: InteractionRecord) -> None:
        """Record a run that ended."""
        now_s = self._clock()
        if not record.tokens and not self._free_rows.take(record.tenant, now_s):
            record = self._free_rows.share_run(record, now_s)
        self._journal.append("interaction", run_id, plain_of(record))

    def _take_row(self, live: CallState, now_s: float) -> None:
        """Decide whether a call has a row of its own, which one that used something always has."""
        live.own_row = not live.unused or self._free_rows.take(live.call.tenant, now_s)

    def _close(self, live: CallState, record: CallRecord, now_s: float) -> None:
        if not live.own_row:
            record = self._free_rows.share_call(record, now_s)
        self._write(live.record_id, record)

    def _write(self, record_id: str, record: CallRecord) -> None:
        self._journal.append("closed", record_id, plain_of(record))
