"""A simulation's calls and runs as the ledger rows that control would have written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from fairserve.engine.simulated.replay_watcher import ReplayWatcher
from fairserve.interactions.call import Call
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.platform.control.call_state import rejection_fields
from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling.dispatch.admission import BILLED
from fairserve.scheduling.events import Refuse
from fairserve.scheduling.fairness.cost import Linear
from fairserve.scheduling.metrics import CallSample

BATCH_ROWS = 5_000

_SERVICE = Linear()

R = TypeVar("R", CallRecord, InteractionRecord)


class SimulatedLedger(ReplayWatcher):
    """Collects records during a replay."""

    def __init__(self, prefix: str, begin: datetime, prices: PriceBook) -> None:
        """``begin`` is the time of the trace's zero."""
        self._prefix = prefix
        self._begin_s = begin.timestamp()
        self._prices = prices
        self.calls: list[CallRecord] = []
        self.runs: list[InteractionRecord] = []

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """Record an ended call."""
        usage, accepted_at = sample.usage, self._begin_s + sample.arrival_s
        price = self._prices.at(call.model, accepted_at)
        spent = usage.prompt_tokens + usage.output_tokens
        first_s = sample.first_token_s
        refused = {} if refusal is None else rejection_fields(refusal)
        record = CallRecord(
            call_id=f"{self._prefix}-{len(self.calls)}",
            tenant=call.tenant,
            app=call.app,
            user=call.user,
            model=call.model,
            interaction_id=f"{self._prefix}-{call.interaction_id}",
            stage=call.stage,
            agent=call.agent,
            outcome=sample.outcome,
            accepted_at=accepted_at,
            ended_at=self._begin_s + sample.end_s,
            input_tokens=usage.input_tokens,
            system_tokens=usage.system_tokens,
            cached_tokens=usage.cached_tokens,
            extend_tokens=usage.extend_tokens,
            output_tokens=usage.output_tokens,
            expected_output_tokens=call.expected_output_tokens or None,
            service=_SERVICE(usage),
            queue_delay_s=sample.queue_delay_s,
            ttft_s=None if first_s is None else first_s - sample.arrival_s,
            duration_s=sample.end_s - sample.arrival_s,
            worker=worker,
            name=call.call_id,
            parents=call.parents or (),
            wasted=sample.outcome != "completed" and spent > 0,
            cost=price.cost(usage) if sample.outcome in BILLED else 0,
            price_id=price.price_id,
            **refused,
        )
        self.calls.append(record)

    def run_ended(self, end: RunEnd, opened_s: float, ended_s: float) -> None:
        """Record an ended run."""
        self.runs.append(
            InteractionRecord(
                interaction_id=f"{self._prefix}-{end.interaction_id}",
                tenant=end.tenant,
                app=end.app,
                user=end.user,
                state=end.state,
                opened_at=self._begin_s + opened_s,
                ended_at=self._begin_s + ended_s,
                calls=end.calls,
                tokens=end.tokens,
                wasted_tokens=end.wasted_tokens,
                waste_cause=end.cause,
            )
        )

    def write(self, sessions: SessionFactory) -> None:
        """Write the rows in short transactions, and roll them up."""
        for calls in _batches(self.calls):
            with sessions.begin() as session:
                upsert_calls(session, calls)
        for runs in _batches(self.runs):
            with sessions.begin() as session:
                upsert_interactions(session, runs)
        roll_up(sessions)


def _batches(records: Sequence[R]) -> list[Sequence[R]]:
    return [records[at : at + BATCH_ROWS] for at in range(0, len(records), BATCH_ROWS)]
