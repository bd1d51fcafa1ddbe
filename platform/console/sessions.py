"""Sessions of the console, stored in the database and therefore valid on every server.

The cookie has 256 random bits; their hash is the row's id. A session represents the key of the sign-in,
or a person of the OpenID provider. It ends with the idle time or the total time, and that of a key with
the key or its tenant, whichever is first. The CSRF token is derived from the cookie's value, which other
sites cannot read. A key's role is read at each request; a person's is that of the sign-in.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fairserve.platform.base.roles import includes
from fairserve.platform.console.person import Person
from fairserve.platform.db.console import ConsoleSession
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import ApiKey, Tenant
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.keys.sessions import IDLE, is_expired
from fairserve.platform.tenancy.roles import needed_role
from fairserve.platform.tenancy.settings import TenancySettings

MOST_PER_OWNER = 100
"""Maximum number of sessions of a key or a person; another sign-in ends the oldest one."""
SEEN_STEP = timedelta(minutes=1)
MAX_TOKEN_CHARS = 100


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of the console and the session."""

    principal: Principal
    tenant_name: str | None
    """Name of the tenant; None for an operator."""
    session_id: str
    expires_at: datetime
    """End of the session, or of its key if that is earlier."""
    csrf: str = field(repr=False)
    """Token that every form must contain."""
    person: Person | None = None
    """The person of the sign-in; None for a key."""

    @property
    def is_admin(self) -> bool:
        """Return whether the viewer has access to all tenants."""
        return self.principal.scope == "admin"

    def may(self, route: str) -> bool:
        """Return whether the role allows a route, given as ``METHOD path``. Tenants have no roles."""
        return not self.is_admin or includes(self.principal.role, needed_role(route))

    @property
    def tenant_id(self) -> str | None:
        """Return the tenant whose data the pages show; None for all tenants."""
        return self.principal.tenant_id


def begin(
    session: Session, owner: Principal | Person, settings: TenancySettings, now: datetime
) -> str:
    """Store a session of a key or a person; return the cookie's value. The caller commits."""
    token = secrets.token_urlsafe(32)
    session.execute(
        delete(ConsoleSession).where(is_expired(now)),
        execution_options={"synchronize_session": False},
    )
    newest = (
        select(ConsoleSession.id)
        .where(*_of(owner))
        .order_by(ConsoleSession.created_at.desc(), ConsoleSession.id)
        .limit(MOST_PER_OWNER - 1)
    )
    kept = session.scalars(newest).all()
    session.execute(
        delete(ConsoleSession).where(*_of(owner), ConsoleSession.id.not_in(kept)),
        execution_options={"synchronize_session": False},
    )
    session.add(
        ConsoleSession(
            id=id_of(token),
            **_columns(owner),
            created_at=now,
            seen_at=now,
            expires_at=now + timedelta(hours=settings.console_session_hours),
        )
    )
    return token


def find(
    sessions: SessionFactory, token: str, settings: TenancySettings, now: datetime
) -> Viewer | None:
    """Return the viewer of a cookie and record the use; None if the session has ended."""
    if not token or len(token) > MAX_TOKEN_CHARS:
        return None
    session_id = id_of(token)
    row = _open_session(sessions, session_id, settings, now)
    if row is None:
        return None
    found, key, tenant = row
    csrf = hashlib.sha256(b"csrf\x00" + token.encode()).hexdigest()
    if key is None:
        person = _person(found)
        return Viewer(person.principal, None, session_id, found.expires_at, csrf, person)
    return Viewer(
        Principal(key.scope, key.tenant_id, key.app_id, key.id, key.prefix, key.role),
        None if tenant is None else tenant.name,
        session_id,
        min(found.expires_at, key.expires_at or found.expires_at),
        csrf,
    )


def still_holds(
    sessions: SessionFactory, viewer: Viewer, settings: TenancySettings, now: datetime
) -> bool:
    """Return whether the session of an open page is still valid; counts as use."""
    return _open_session(sessions, viewer.session_id, settings, now) is not None


def end(session: Session, session_id: str) -> None:
    """Delete a session. The caller commits."""
    session.execute(delete(ConsoleSession).where(ConsoleSession.id == session_id))


def _open_session(
    sessions: SessionFactory, session_id: str, settings: TenancySettings, now: datetime
) -> tuple[ConsoleSession, ApiKey | None, Tenant | None] | None:
    """Return a valid session with its key and tenant, if any, and store its use, to the minute."""
    with sessions() as session:
        row = (
            read_only(session)
            .execute(
                select(ConsoleSession, ApiKey, Tenant)
                .outerjoin(ApiKey, ApiKey.id == ConsoleSession.key_id)
                .outerjoin(Tenant, Tenant.id == ApiKey.tenant_id)
                .where(ConsoleSession.id == session_id)
            )
            .first()
        )
    if row is None or not _holds(*row, settings, now):
        return None
    if now - row[0].seen_at >= SEEN_STEP:
        # A session is valid on a database that cannot be written at the moment.
        with suppress(DBAPIError), sessions.begin() as session:
            session.execute(
                update(ConsoleSession)
                .where(ConsoleSession.id == session_id)
                .values(seen_at=now)
                .execution_options(synchronize_session=False)
            )
    return row[0], row[1], row[2]


def _holds(
    row: ConsoleSession,
    key: ApiKey | None,
    tenant: Tenant | None,
    settings: TenancySettings,
    now: datetime,
) -> bool:
    if row.expires_at <= now or row.seen_at <= now - IDLE:
        return False
    if key is None:
        return row.key_id is None
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
        return False
    return tenant is None or (tenant.suspended_at is None and tenant.deleted_at is None)


def _of(owner: Principal | Person) -> tuple[ColumnElement[bool], ...]:
    return tuple(
        getattr(ConsoleSession, name) == value
        for name, value in _columns(owner).items()
        if name in ("key_id", "issuer", "subject")
    )


def _columns(owner: Principal | Person) -> dict[str, str]:
    if isinstance(owner, Principal):
        return {"key_id": owner.key_id}
    return {name: getattr(owner, name) for name in ("issuer", "subject", "name", "role")}


def _person(row: ConsoleSession) -> Person:
    assert row.issuer is not None, "a session without a key has a person"
    assert row.subject is not None, "a session without a key has a person"
    assert row.role is not None, "a session without a key has a person"
    return Person(row.issuer, row.subject, row.name or "", row.role)


def id_of(token: str) -> str:
    """Return the id of the session of a cookie."""
    return hashlib.sha256(token.encode()).hexdigest()
