"""Makes the ledger row of every accepted call, exactly one each, and decides whether it is charged.

A rejected call has a row, too. Calls and runs that used nothing share rows once their tenant has too
many (:mod:`free_rows`).

A row is made again under its id only to waive an attempt on which no worker has worked and that its
client has repeated (see ``retries``): the ledger's upsert replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairserve.platform.control.call_state import CallState, rejection_fields
from fairserve.platform.control.cell_events import JournalRow
from fairserve.platform.control.free_rows import FreeRows
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.control.record import plain_of
from fairserve.platform.control.retries import RecentAttempts
from fairserve.scheduling.events import CallOutcome, Refuse


class CallRecorder:
    """Makes the rows of ended and rejected calls, and of ended runs. ``ended_at`` is wall time."""

    def __init__(self, seed: int) -> None:
        self._free_rows = FreeRows(seed)
        self._attempts = RecentAttempts()
        self._live: dict[str, list[CallState]] = {}
        """Live calls by fingerprint, where they have one, in the order of their acceptance."""

    def accepted(self, live: CallState) -> JournalRow:
        """Return the entry of an accepted call."""
        self._remember(live)
        return JournalRow("accepted", live.record_id, live.accepted_data())

    def _remember(self, live: CallState) -> None:
        if live.fingerprint:
            self._live.setdefault(live.fingerprint, []).append(live)

    def repeated(self, fingerprint: str, now_s: float) -> JournalRow | None:
        """Waive one attempt that is repeated now, unless a worker works on it before it ends.

        Return the row of an attempt that has ended already.
        """
        earlier = self._attempts.take(fingerprint, now_s)
        if earlier is not None:
            return JournalRow("closed", earlier["call_id"], {**earlier, "charged": False})
        for live in self._live.get(fingerprint, ()):
            if not live.superseded and not live.repeats:
                live.superseded = True
                break
        return None

    def rejected(
        self, live: CallState, rejection: Refuse, *, now_s: float, ended_at: float
    ) -> JournalRow:
        """Return the row of a rejected call, which never was live."""
        live.own_row = self._free_rows.take(live.call.tenant, now_s)
        row = live.row("refused", now_s=now_s, ended_at=ended_at)
        return self._closed(live, row | rejection_fields(rejection), now_s)

    def ended(
        self,
        live: CallState,
        outcome: CallOutcome,
        *,
        now_s: float,
        ended_at: float,
        error: str = "",
        rejection: Refuse | None = None,
    ) -> JournalRow:
        """Return the row of an accepted call that ended. ``rejection``: of a call that waited."""
        self.dropped(live)
        unused, charged = live.unused, live.charged
        live.own_row = not unused or self._free_rows.take(live.call.tenant, now_s)
        row = live.row(outcome, now_s=now_s, ended_at=ended_at, error=error, charged=charged)
        if rejection is not None:
            row |= rejection_fields(rejection)
        elif live.own_row and unused and not live.superseded and not live.repeats:
            self._attempts.remember(live.fingerprint, row, now_s)
        return self._closed(live, row, now_s)

    def dropped(self, live: CallState) -> None:
        """Forget an accepted call."""
        same = self._live.get(live.fingerprint)
        if same is not None and live in same:
            same.remove(live)
            if not same:
                del self._live[live.fingerprint]

    def run_ended(self, run_id: str, record: InteractionRecord, now_s: float) -> JournalRow:
        """Return the row of a run that ended."""
        if not record.tokens and not self._free_rows.take(record.tenant, now_s):
            record = self._free_rows.share_run(record, now_s)
        return JournalRow("interaction", run_id, plain_of(record))

    def _closed(self, live: CallState, row: dict[str, Any], now_s: float) -> JournalRow:
        if not live.own_row:
            row = plain_of(self._free_rows.share_call(CallRecord(**row), now_s))
        return JournalRow("closed", live.record_id, row)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, without the live calls."""
        return {
            "free_rows": self._free_rows.snapshot(),
            "attempts": self._attempts.snapshot(),
        }

    def restore(self, state: Mapping[str, Any], calls: Iterable[CallState]) -> None:
        """Replace the state by an earlier snapshot; ``calls`` are live, in their order."""
        self._free_rows.restore(state["free_rows"])
        self._attempts.restore(state["attempts"])
        self._live = {}
        for live in calls:
            self._remember(live)
