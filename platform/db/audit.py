"""Write the audit log. Callers pass only values that every operator may read.

A change of a tenant's key costs the tenant nothing, and its entry is kept for the retention. So the keys
of a tenant make at most ``MAX_CHANGES_PER_HOUR``; one more is not made. Cost: a count over the tenant's
entries of an hour, by an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import RateLimitedError
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.operations import AuditEntry

MAX_CHANGES_PER_HOUR = 3_000
"""Changes by all keys of a tenant together."""
_HOUR = timedelta(hours=1)


class Actor(Protocol):
    """The key or the person that authorised a change."""

    @property
    def key_id(self) -> str:
        """Id of the key; empty for a person without one."""
        ...

    @property
    def tenant_id(self) -> str | None:
        """Tenant that the key belongs to; None for operators."""
        ...

    @property
    def actor(self) -> str:
        """Visible prefix of the key, or the person."""
        ...


_SECRET_FIELDS = frozenset({"api_key", "key_hash", "plain", "secret"})


def record(
    session: Session,
    principal: Actor | None,
    action: str,
    target: str,
    *,
    tenant_id: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    actor: str = "system",
) -> None:
    """Add an entry to the session, which stores it together with the change. Without a ``principal``
    the entry names ``actor``, by default the server. Raises RateLimitedError if the keys of the
    principal's tenant have made too many changes.
    """
    if principal is not None and principal.tenant_id is not None:
        _require_few(session, principal.tenant_id)
    for state in (before, after):
        assert state is None or not _SECRET_FIELDS & state.keys(), "a secret in the audit log"
    session.add(
        AuditEntry(
            id=new_id("au"),
            at=utc_now(),
            actor=actor if principal is None else principal.actor,
            actor_key_id=None if principal is None else principal.key_id or None,
            tenant_id=tenant_id,
            action=action,
            target=target,
            before=dict(before) if before is not None else None,
            after=dict(after) if after is not None else None,
        )
    )


def _require_few(session: Session, tenant_id: str) -> None:
    keys = select(ApiKey.id).where(ApiKey.tenant_id == tenant_id)
    recent = select(func.count()).where(
        AuditEntry.tenant_id == tenant_id,
        AuditEntry.at > utc_now() - _HOUR,
        AuditEntry.actor_key_id.in_(keys),
    )
    if (session.scalar(recent) or 0) >= MAX_CHANGES_PER_HOUR:
        raise RateLimitedError(
            f"the keys of this tenant made {MAX_CHANGES_PER_HOUR:,} changes within an hour, which is"
            " the limit; retry later",
            code="too_many_changes",
            headers={"Retry-After": "60"},
        )
