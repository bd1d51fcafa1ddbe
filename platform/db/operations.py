"""What operators did, and what holds for all: settings, audit log, installation, schema info."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base


class ThrottlingSetting(Base):
    """One version of system and parameters; the highest version holds. Rows are never changed."""

    __tablename__ = "throttling_settings"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    system: Mapped[str] = mapped_column(String(ID_CHARS))
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    author: Mapped[str] = mapped_column(String(NAME_CHARS))
    created_at: Mapped[datetime]


class AuditEntry(Base):
    """Who changed what. ``before`` and ``after`` hold no secrets: keys appear by id and prefix."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "at"), Index(None, "tenant_id", "at"))

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Visible prefix of the key that acted, or ``system``."""
    actor_key_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    tenant_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    action: Mapped[str] = mapped_column(String(ID_CHARS))
    target: Mapped[str] = mapped_column(String(NAME_CHARS * 2))
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class InstallationFact(Base):
    """Something that holds for the whole installation, by name."""

    __tablename__ = "installation_facts"

    name: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    value: Mapped[str] = mapped_column(String(NAME_CHARS))
    recorded_at: Mapped[datetime]


class SchemaInfo(Base):
    """One row: which servers may use this schema. A contracting migration changes it."""

    __tablename__ = "schema_info"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    min_reader: Mapped[int]
    """The oldest schema revision whose server may still use this database."""
    compatible: Mapped[bool]
    """False while a contracting migration is under way."""
