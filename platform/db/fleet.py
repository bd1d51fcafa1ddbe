"""Tables of the fleet's API: registered workers, aliases, and drained workers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, TEXT_CHARS, Base
from fairserve.platform.db.ledger import WIDE_ID_CHARS


class FleetWorker(Base):
    """A worker that joined through the API."""

    __tablename__ = "fleet_workers"

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    url: Mapped[str] = mapped_column(String(TEXT_CHARS), unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    model: Mapped[str | None] = mapped_column(String(WIDE_ID_CHARS))
    tokenizer: Mapped[str | None] = mapped_column(String(TEXT_CHARS))
    kv_events: Mapped[str | None] = mapped_column(String(TEXT_CHARS))
    kv_replay: Mapped[str | None] = mapped_column(String(TEXT_CHARS))
    kv_tokens: Mapped[int | None] = mapped_column(BigInteger)
    concurrency: Mapped[int]
    api_key_env: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of an environment variable, never a key."""
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the worker; null: none."""
    created_at: Mapped[datetime]


class FleetDrain(Base):
    """A drained worker, by id: it does not serve, however it is configured and even while absent."""

    __tablename__ = "fleet_drains"

    worker_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    drained_by: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Visible prefix of the key, or the person."""
    drained_at: Mapped[datetime]


class FleetAlias(Base):
    """Another name for a model, or a split between versions with their weights."""

    __tablename__ = "fleet_aliases"

    name: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    targets: Mapped[dict[str, Any]] = mapped_column(JSON)
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the alias; null: none."""
    updated_at: Mapped[datetime]
