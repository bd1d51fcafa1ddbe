"""Tables of settings, audit log, facts of installation and schema, and the database's lease."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base


class ThrottlingSetting(Base):
    """A version of system and parameters; the highest is in force. Rows are never changed."""

    __tablename__ = "throttling_settings"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    system: Mapped[str] = mapped_column(String(ID_CHARS))
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    author: Mapped[str] = mapped_column(String(NAME_CHARS))
    created_at: Mapped[datetime]


class AuditEntry(Base):
    """An entry of the audit log. It holds no secrets: keys appear by id and prefix."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "at"), Index(None, "tenant_id", "at"))

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Visible prefix of the key that made the change, ``oidc:`` and the person, or ``system``."""
    actor_key_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    tenant_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    action: Mapped[str] = mapped_column(String(ID_CHARS))
    target: Mapped[str] = mapped_column(String(NAME_CHARS * 2))
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class InstallationFact(Base):
    """A named value of the whole installation."""

    __tablename__ = "installation_facts"

    name: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    value: Mapped[str] = mapped_column(String(NAME_CHARS))
    recorded_at: Mapped[datetime]


class SchemaInfo(Base):
    """The servers that may use this schema, one row. A contracting migration changes it."""

    __tablename__ = "schema_info"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    min_reader: Mapped[int]
    """Revision of the oldest server that may use this database."""
    compatible: Mapped[bool]
    """False while a contracting migration runs."""


class ServerLease(Base):
    """The server that holds the database, one row (:mod:`fairserve.platform.control.lease`)."""

    __tablename__ = "server_lease"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token: Mapped[int] = mapped_column(BigInteger)
    """Fencing token, incremented by each takeover; writes under an earlier token are rejected."""
    beat: Mapped[int] = mapped_column(BigInteger)
    """Number of renewals under this token."""
    holder: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Host and process of the holder; empty if the lease is released."""
    guard: Mapped[str] = mapped_column(String(NAME_CHARS))
    """The lock that the holder's process holds while it runs."""
    lease_s: Mapped[float]
    """Seconds for which the holder may serve after a renewal."""
    renewed_at: Mapped[datetime]
    """Wall-clock time of the holder, for operators and for the ages of restored state."""
