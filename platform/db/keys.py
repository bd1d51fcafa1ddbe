"""API keys in the database: create, list and revoke, and the first admin key.

:func:`issue` returns the plain key once; the database stores its keyed hash and a visible prefix that
identifies the key and reveals nothing else.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from fairserve.platform.base.roles import Role
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.identity import ApiKey, KeyScope
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.rows import count

SCOPE_LETTERS: dict[KeyScope, str] = {"admin": "a", "tenant": "t", "app": "p"}
KEY_PREFIX = "sk-fs-"
VISIBLE_CHARS = 12
"""``sk-fs-p-`` and four random characters; 232 random bits stay hidden."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. ``plain`` is shown once and not stored."""

    row: ApiKey
    plain: str = field(repr=False)


class KeyOwner(NamedTuple):
    """Owner of keys: a tenant, one of its apps, or the deployment, which owns the admin keys."""

    tenant_id: str | None
    app_id: str | None = None

    @property
    def scope(self) -> KeyScope:
        """Scope of the owner's keys."""
        if self.tenant_id is None:
            return "admin"
        return "tenant" if self.app_id is None else "app"


def generate_key(scope: KeyScope) -> str:
    """Return ``sk-fs-<letter>-`` and 43 characters, which are 256 random bits in base64url."""
    return f"{KEY_PREFIX}{SCOPE_LETTERS[scope]}-{secrets.token_urlsafe(32)}"


def issue(
    session: Session,
    hasher: KeyHasher,
    scope: KeyScope,
    *,
    tenant_id: str | None = None,
    app_id: str | None = None,
    name: str = "",
    role: Role = "admin",
    expires_at: datetime | None = None,
    plain: str | None = None,
) -> IssuedKey:
    """Add a key to the session: ``plain`` if the operator chose it, else a generated one."""
    key = plain or generate_key(scope)
    row = ApiKey(
        id=new_id("key"),
        scope=scope,
        tenant_id=tenant_id,
        app_id=app_id,
        key_hash=hasher.hash(key),
        secret_id=hasher.secret_id,
        prefix=key[:VISIBLE_CHARS] if key.startswith(KEY_PREFIX) else key[:4],
        name=name,
        role=role,
        created_at=utc_now(),
        expires_at=expires_at,
        revoked_at=None,
        last_used_at=None,
    )
    session.add(row)
    session.flush()
    return IssuedKey(row, key)


def find(session: Session, hasher: KeyHasher, plain: str) -> ApiKey | None:
    """Return the row of a key, stored under either secret."""
    statement = select(ApiKey).where(ApiKey.key_hash.in_(hasher.candidates(plain)))
    return session.scalars(statement).first()


def owner_of(row: ApiKey) -> KeyOwner:
    """Return the owner of a key."""
    return KeyOwner(row.tenant_id, row.app_id)


def listed(owner: KeyOwner) -> Select[ApiKey]:
    """Return the statement of an owner's keys, revoked ones included, oldest first."""
    return select(ApiKey).where(*_of(owner)).order_by(ApiKey.created_at, ApiKey.id)


def count_valid(session: Session, owner: KeyOwner, now: datetime) -> int:
    """Return the number of an owner's keys that are neither revoked nor expired."""
    unexpired = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
    return count(session, listed(owner).where(ApiKey.revoked_at.is_(None), unexpired))


def lasting_admins(session: Session) -> list[str]:
    """Return the ids of the keys of role admin that are not revoked and never expire, locked."""
    statement = select(ApiKey.id).where(
        *_of(KeyOwner(None)),
        ApiKey.role == "admin",
        ApiKey.revoked_at.is_(None),
        ApiKey.expires_at.is_(None),
    )
    return list(session.scalars(statement.order_by(ApiKey.id).with_for_update()))


def end_others(session: Session, keep: ApiKey, at: datetime, *, now: datetime) -> list[str]:
    """End all valid keys of the same owner except ``keep``: revoke them if ``at`` is not after
    ``now``, else let them expire then at the latest. Returns their ids.
    """
    statement = select(ApiKey).where(
        *_of(owner_of(keep)),
        ApiKey.revoked_at.is_(None),
        ApiKey.id != keep.id,
    )
    rows = session.scalars(statement.order_by(ApiKey.created_at, ApiKey.id)).all()
    for row in rows:
        if at <= now:
            row.revoked_at = now
        elif row.expires_at is None or row.expires_at > at:
            row.expires_at = at
    session.flush()
    return [row.id for row in rows]


def ensure_admin_key(
    sessions: SessionFactory, hasher: KeyHasher, configured: str | None = None
) -> str | None:
    """Ensure that an admin key exists.

    A ``configured`` key (``FAIRSERVE_ADMIN_KEY``) is stored unless it is known; a revoked one stays
    revoked. If neither it nor any admin key exists, a key is generated and returned, to be shown
    once. Returns None if there is nothing to show.
    """
    try:
        with sessions.begin() as session:
            if configured is not None:
                if find(session, hasher, configured) is None:
                    issue(session, hasher, "admin", plain=configured)
                return None
            if session.scalars(select(ApiKey.id).where(ApiKey.scope == "admin")).first():
                return None
            return issue(session, hasher, "admin").plain
    except IntegrityError:
        if configured is None:
            raise
        return None  # another server stored the same key at the same time


def _of(owner: KeyOwner) -> tuple[ColumnElement[bool], ...]:
    # A comparison with None becomes IS NULL, which separates a tenant's own keys from its apps'.
    return (ApiKey.tenant_id == owner.tenant_id, ApiKey.app_id == owner.app_id)
