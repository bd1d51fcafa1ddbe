"""The table of alarms: those that are open, and the history of those that are resolved.

One process writes it (:mod:`fairserve.platform.background.alarms.watch`), except for acknowledgements.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base


class AlarmRow(Base):
    """An alarm. The ids are without foreign keys, because a worker or a user may be gone."""

    __tablename__ = "alarms"
    __table_args__ = (
        Index(None, "opened_at", "id"),
        Index(None, "tenant_id", "opened_at"),
        Index(None, "resolved_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    severity: Mapped[str] = mapped_column(String(8))
    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS))
    """Tenant and app whose calls it is about; empty for an alarm about the server."""
    app_id: Mapped[str] = mapped_column(String(ID_CHARS))
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    """User that it is about; empty for none."""
    subject: Mapped[str] = mapped_column(String(NAME_CHARS * 2))
    """Model, worker or job that it is about; empty for none."""
    facts: Mapped[dict[str, Any]] = mapped_column(JSON)
    affected: Mapped[list[list[str]]] = mapped_column(JSON)
    """Tenant and app of each app whose calls it affected."""
    cause: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The limit that rejects the calls, and the last change before it, as far as they are known."""
    opened_at: Mapped[datetime]
    acknowledged_by: Mapped[str] = mapped_column(String(NAME_CHARS))
    acknowledged_at: Mapped[datetime | None]
    resolved_at: Mapped[datetime | None]
