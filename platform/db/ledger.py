"""Tables of interactions, of the call ledger, and of the rejections among the calls.

Rows come from the journal (:mod:`fairserve.platform.control.record`), so they repeat ids as plain
strings without foreign keys. Retention deletes them by time; the indexes serve the reports.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.interactions.tracking.run import RunState
from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, TEXT_CHARS, Base

WIDE_ID_CHARS = 255
"""Length of ids that clients choose: interactions, agents, models, workers."""


class LedgerInteraction(Base):
    """An interaction that has ended; the fields of ``InteractionRecord``."""

    __tablename__ = "interactions"
    __table_args__ = (
        Index(None, "tenant_id", "opened_at"),
        Index(None, "app_id", "opened_at"),
        Index(None, "opened_at"),
        Index(None, "ended_at"),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    state: Mapped[str] = mapped_column(String(16))
    opened_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    calls: Mapped[int]
    tokens: Mapped[int] = mapped_column(BigInteger)
    wasted_tokens: Mapped[int] = mapped_column(BigInteger)
    waste_cause: Mapped[str] = mapped_column(String(16))
    shared_by: Mapped[int | None] = mapped_column(BigInteger)
    """Number of interactions without tokens that share the row; null: it has one."""


class OpenInteraction(Base):
    """An interaction that has not ended; the fields of ``OpenInteractionRecord``.

    A restart restores it, with its calls from the ledger. Its row is deleted when it ends.
    """

    __tablename__ = "open_interactions"
    __table_args__ = (Index(None, "tenant_id", "user_id"),)

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    opened_at: Mapped[datetime]
    sink: Mapped[str | None] = mapped_column(String(WIDE_ID_CHARS))
    """Name of the call that completes the interaction when it ends."""
    closing: Mapped[RunState | None] = mapped_column(String(16))
    """Final state, set if the client closed the interaction while calls were live."""


class LedgerCall(Base):
    """An accepted or rejected call, in exactly one row; the fields of ``CallRecord``."""

    __tablename__ = "ledger_calls"
    __table_args__ = (
        Index(None, "tenant_id", "accepted_at"),
        Index(None, "app_id", "accepted_at"),
        Index(None, "tenant_id", "user_id", "accepted_at"),
        Index(None, "interaction_id"),
        Index(None, "accepted_at"),
    )

    call_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS))
    app_id: Mapped[str] = mapped_column(String(ID_CHARS))
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    model: Mapped[str] = mapped_column(String(WIDE_ID_CHARS))
    interaction_id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS))
    stage: Mapped[int]
    agent: Mapped[str | None] = mapped_column(String(WIDE_ID_CHARS))
    outcome: Mapped[str] = mapped_column(String(16))
    accepted_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    """Prompt tokens without ``system_tokens``; reports count whole prompts."""
    system_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    extend_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    """Part of ``output_tokens``."""
    service: Mapped[float]
    expected_output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    """Output tokens predicted when the call was admitted; null if it was not."""
    queue_delay_s: Mapped[float | None]
    ttft_s: Mapped[float | None]
    duration_s: Mapped[float | None]
    worker: Mapped[str | None] = mapped_column(String(WIDE_ID_CHARS))
    served_model: Mapped[str | None] = mapped_column(String(WIDE_ID_CHARS))
    """Model that the requested name, ``model``, resolved to; null if it resolved to none."""
    name: Mapped[str | None] = mapped_column(String(WIDE_ID_CHARS))
    """The client's id of the call; null in a row that several calls share."""
    parents: Mapped[list[str]] = mapped_column(JSON)
    """Names of its parent calls in the run."""
    wasted: Mapped[bool]
    charged: Mapped[bool]
    estimated: Mapped[bool] = mapped_column(default=False)
    """The output tokens are a forecast: the call ended early, and its worker had reported none."""
    service_tier: Mapped[str] = mapped_column(String(16), default="default")
    """``default``, ``flex`` or ``priority``."""
    cost: Mapped[int] = mapped_column(BigInteger, default=0)
    """Nanounits of the currency; 0 for failed and uncharged calls."""
    price_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    """Price from which ``cost`` was computed; null if the model had none."""
    error: Mapped[str] = mapped_column(String(TEXT_CHARS))
    shared_by: Mapped[int | None] = mapped_column(BigInteger)
    """Number of calls without tokens that share the row; null: it has one."""


class ThrottlingEvent(Base):
    """A rejection: its reason, the limit and its usage, and the response. One row per rejected call.

    The columns from ``system`` to ``immune`` are the fields of ``RejectionContext``, the next ones those
    of its budget; they are null in rejections that do not have them.
    """

    __tablename__ = "throttling_events"
    __table_args__ = (
        Index(None, "tenant_id", "at"),
        Index(None, "app_id", "at"),
        Index(None, "at", "call_id"),
    )

    call_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    at: Mapped[datetime]
    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS))
    app_id: Mapped[str] = mapped_column(String(ID_CHARS))
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    interaction_id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS))
    reason: Mapped[str] = mapped_column(String(64))
    scope: Mapped[str | None] = mapped_column(String(8))
    limit_count: Mapped[int | None]
    count: Mapped[int | None]
    window_s: Mapped[float | None]
    retry_after_s: Mapped[float | None]
    mid_run: Mapped[bool]
    system: Mapped[str | None] = mapped_column(String(ID_CHARS))
    overloaded: Mapped[bool | None]
    demand_tokens: Mapped[int | None] = mapped_column(BigInteger)
    capacity_tokens: Mapped[int | None] = mapped_column(BigInteger)
    high_watermark: Mapped[float | None]
    low_watermark: Mapped[float | None]
    queued_calls: Mapped[int | None]
    call_tokens: Mapped[int | None] = mapped_column(BigInteger)
    run_calls: Mapped[int | None]
    run_tokens: Mapped[int | None] = mapped_column(BigInteger)
    expected_calls: Mapped[float | None]
    expected_tokens: Mapped[float | None]
    immunity_factor: Mapped[float | None]
    under_way: Mapped[bool | None]
    immune: Mapped[bool | None]
    budget_limit: Mapped[int | None] = mapped_column(BigInteger)
    """Nanounits, as are the next three columns; null except in rejections by a budget."""
    budget_spent: Mapped[int | None] = mapped_column(BigInteger)
    budget_held: Mapped[int | None] = mapped_column(BigInteger)
    call_cost: Mapped[int | None] = mapped_column(BigInteger)
    """Highest possible cost of the call."""
    shared_by: Mapped[int | None] = mapped_column(BigInteger)
    """Number of rejected calls that share the row; null: it has one."""
