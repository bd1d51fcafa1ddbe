"""Tables of tenants, apps, keys, profiles, users and limits.

A deleted row is marked first, and its keys stop working; it is purged after the ledger's retention,
so that reports can name tenants and apps. Ledger rows have ids without foreign keys, because they are
written from a journal, possibly much later.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from fairserve.interactions.call import TenantLevels
from fairserve.platform.base.roles import Role
from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base

KeyScope = Literal["admin", "tenant", "app"]
ProfileMode = Literal["learned", "declared", "pinned"]
"""Source of an app's profile in force: learned from its calls, declared by its owner, or pinned by an
operator."""


def _unique_while_present(*columns: str) -> Index:
    """Return a unique index that ignores deleted rows, so that their names can be used again."""
    present = text("deleted_at IS NULL")
    return Index(None, *columns, unique=True, postgresql_where=present, sqlite_where=present)


class Tenant(Base):
    """A customer. While ``suspended_at`` or ``deleted_at`` is set, none of its keys works."""

    __tablename__ = "tenants"
    __table_args__ = (_unique_while_present("name"),)

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_CHARS))
    weight: Mapped[float] = mapped_column(default=1.0)
    """Weight of the tenant's calls: 2 is entitled to twice the service of 1."""
    levels: Mapped[TenantLevels | None] = mapped_column(String(32))
    """Levels of the tenant's clients; null: the system's."""
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the tenant; null: none."""
    created_at: Mapped[datetime]
    suspended_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class App(Base):
    """A registered application of a tenant, with the expected size of its runs."""

    __tablename__ = "apps"
    __table_args__ = (_unique_while_present("tenant_id", "name"),)

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="RESTRICT"))
    name: Mapped[str] = mapped_column(String(NAME_CHARS))
    calls_per_interaction: Mapped[float]
    idle_timeout_s: Mapped[float]
    weight: Mapped[float] = mapped_column(default=1.0)
    """Weight of the app's calls, multiplied by those of the tenant and the user."""
    priority_weight: Mapped[float | None]
    """Factor on the service of its calls of the tier ``priority``; null: it may have none."""
    profile_mode: Mapped[ProfileMode] = mapped_column(String(16), default="learned")
    profile_version: Mapped[int] = mapped_column(default=0)
    """Highest version in ``profile_versions``; 0 while there is none."""
    profile_looked_at: Mapped[datetime | None]
    """Time of the last evaluation of the app's calls for learning."""
    user_headers: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Headers that name its end users, in order; null: the default, empty: none."""
    cors_origins: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Origins of the pages that may call with its keys; null: none."""
    run_rules: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Rules that assign its calls to runs; null: the server's, empty: each call is a run."""
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the app; null: none."""
    created_at: Mapped[datetime]
    suspended_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    tenant: Mapped[Tenant] = relationship()
    stages: Mapped[list[TokenProfile]] = relationship(
        order_by="TokenProfile.stage", cascade="all, delete-orphan", passive_deletes=True
    )
    limits: Mapped[AppLimits] = relationship(cascade="all, delete-orphan", passive_deletes=True)


class TokenProfile(Base):
    """Expected tokens of one call of an app at one stage; stages count from 1."""

    __tablename__ = "token_profiles"

    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    input_tokens: Mapped[float]
    system_tokens: Mapped[float]
    output_tokens: Mapped[float]


class AppLimits(Base):
    """Calls per minute of one user, and of the app as a whole, under overload; null is no limit."""

    __tablename__ = "limits"

    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"), primary_key=True)
    user_rpm: Mapped[int | None]
    app_rpm: Mapped[int | None]
    new_users_per_minute: Mapped[int | None]
    """Null: the default of :func:`fairserve.platform.tenancy.apps.limits.new_users_in_force`."""


class ApiKey(Base):
    """An API key: a keyed hash and a visible prefix, never the key itself."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint(
            "(scope = 'admin' AND tenant_id IS NULL AND app_id IS NULL)"
            " OR (scope = 'tenant' AND tenant_id IS NOT NULL AND app_id IS NULL)"
            " OR (scope = 'app' AND tenant_id IS NOT NULL AND app_id IS NOT NULL)",
            name="scope",
        ),
        Index(None, "tenant_id"),
        Index(None, "app_id"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    scope: Mapped[KeyScope] = mapped_column(String(8))
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    app_id: Mapped[str | None] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"))
    key_hash: Mapped[str] = mapped_column(String(64), unique=True)
    secret_id: Mapped[str] = mapped_column(String(16))
    """Id of the secret key under which the hash was computed."""
    prefix: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(NAME_CHARS), default="")
    """Display name of the key."""
    role: Mapped[Role] = mapped_column(String(16), default="admin")
    """Role of an admin key; keys of tenants and apps have the default, which restricts nothing."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Last use, rounded to the hour to save writes; never before ``created_at``."""


class EndUser(Base):
    """An operator's settings for one end user; a user with default settings has no row."""

    __tablename__ = "end_users"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    external_id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    weight: Mapped[float]
    """Weight of the user's calls: 2 is entitled to twice the service of 1."""
    rpm: Mapped[int | None]
    """Calls per minute under overload, in place of the app's ``user_rpm``."""
    blocked: Mapped[bool]
    priority_weight: Mapped[float | None]
    """Weight of calls of the tier ``priority``, in place of the app's; null: the app's."""
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the settings; null: none."""
    updated_at: Mapped[datetime]
