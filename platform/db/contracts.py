"""Tables of quotas and prices: limits and budgets of tenants, apps and users, and token prices.

Money is stored as integers: amounts in nanounits (1e-9 of the deployment's currency), prices in
micro-units per million tokens, so that sums are exact on every database.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base
from fairserve.platform.db.ledger import WIDE_ID_CHARS


class Contract(Base):
    """The limits of one quota subject; the fields of :class:`~fairserve.throttling.quotas.quota.Quota`.

    ``scope`` is the kind of subject: ``tenant``, ``app``, ``app_user`` (each user of an app) or ``user``
    (one user, in all apps of its tenant). ``app_id`` and ``user_id`` are empty if they do not apply.
    """

    __tablename__ = "contracts"
    __table_args__ = (Index(None, "app_id"),)

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    scope: Mapped[str] = mapped_column(String(8), primary_key=True)
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    rpm_limit: Mapped[int | None]
    tpm_limit: Mapped[int | None] = mapped_column(BigInteger)
    max_parallel_requests: Mapped[int | None]
    max_budget: Mapped[int | None] = mapped_column(BigInteger)
    """Nanounits, as ``soft_budget``."""
    soft_budget: Mapped[int | None] = mapped_column(BigInteger)
    soft_end: Mapped[str] = mapped_column(String(16))
    budget_duration: Mapped[str | None] = mapped_column(String(8))
    allowed_models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    updated_at: Mapped[datetime]


class Price(Base):
    """Token prices of a model, valid until its next price begins. Rows are never changed."""

    __tablename__ = "prices"
    __table_args__ = (Index(None, "model", "valid_from", unique=True),)

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    model: Mapped[str] = mapped_column(String(WIDE_ID_CHARS))
    """The served model; ``*`` is every model without its own price."""
    valid_from: Mapped[datetime]
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    """Micro-units of the currency per million uncached prompt tokens."""
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int | None] = mapped_column(BigInteger)
    """Null: the price of ``output_tokens``."""
    flex_multiplier: Mapped[float] = mapped_column(default=1.0)
    """Factor on the prices for calls of the tier ``flex``."""
    priority_multiplier: Mapped[float] = mapped_column(default=1.0)
    author: Mapped[str] = mapped_column(String(NAME_CHARS))
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the price; null: none."""
    created_at: Mapped[datetime]
