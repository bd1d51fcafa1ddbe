"""Write the audit log. Callers pass only values that every operator may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy.orm import Session

from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.operations import AuditEntry


class Actor(Protocol):
    """The key or the person that authorised a change."""

    @property
    def key_id(self) -> str:
        """Id of the key; empty for a person without one."""
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
    the entry names ``actor``, by default the server.
    """
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
