"""Operations on the keys of one owner: add, list, rename, revoke, and rotate with an overlap.

An owner is a tenant, an app, or the deployment, which owns the admin keys. At least one valid admin key
without an expiry remains, so that operators cannot lock themselves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from fastapi import Response
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, InvalidRequestError, NotFoundError
from fairserve.platform.db import audit, keys
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.keys import KeyOwner
from fairserve.platform.db.schemas import KeyOut, NewKeyOut, Page, Paging
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.auth import Authenticator, Principal
from fairserve.platform.tenancy.keys.schemas import KeyCreate

DEPLOYMENT = KeyOwner(None)
MAX_KEYS = 100
"""Maximum number of valid keys of one owner."""


class KeyRing:
    """The keys of one owner. Before changes the caller locks the row of the tenant or app."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        authenticator: Authenticator,
        owner: keys.KeyOwner,
    ) -> None:
        self._session = session
        self._principal = principal
        self._authenticator = authenticator
        self._owner = owner

    def issue(self, name: str = "", expires_at: datetime | None = None) -> keys.IssuedKey:
        """Create a key without a check of their number."""
        key = keys.issue(
            self._session,
            self._authenticator.hasher,
            self._owner.scope,
            tenant_id=self._owner.tenant_id,
            app_id=self._owner.app_id,
            name=name,
            expires_at=expires_at,
        )
        self._audit("key.create", key.row.id, after=_audited(key.row))
        return key

    def add(self, body: KeyCreate) -> keys.IssuedKey:
        """Create a further key; raises ConflictError at the maximum number."""
        if body.expires_at is not None and body.expires_at <= utc_now():
            raise InvalidRequestError("expires_at is in the past", param="expires_at")
        self._lock_admin_keys()
        self._check_capacity()
        return self.issue(body.name or "", body.expires_at)

    def page(self, limit: int, offset: int) -> tuple[Sequence[ApiKey], int]:
        """Return a page of the keys, and their number."""
        rows = keys.page(self._session, self._owner, limit=limit, offset=offset)
        return rows, keys.count(self._session, self._owner)

    def rename(self, key_id: str, name: str) -> ApiKey:
        """Change the display name of a key."""
        row = self._get(key_id)
        if row.name != name:
            before = _audited(row)
            row.name = name
            self._audit("key.change", row.id, before=before, after=_audited(row))
        return row

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key; idempotent. Raises ConflictError for the last admin key."""
        lasting = self._lock_admin_keys()
        row = self._get(key_id)
        if row.revoked_at is None:
            if self._owner.scope == "admin" and not set(lasting) - {key_id}:
                raise ConflictError(
                    "this is the last admin key without an expiry; create another one first:"
                    " POST /admin/keys",
                    code="last_admin_key",
                )
            before = _audited(row)
            row.revoked_at = utc_now()
            self._audit("key.revoke", row.id, before=before, after=_audited(row))
            after_commit(self._session, lambda: self._authenticator.forget(key_id=key_id))
        return row

    def rotate(self, grace_s: float) -> keys.IssuedKey:
        """Create a key; the others end after ``grace_s``, at once if it is 0."""
        self._lock_admin_keys()
        if grace_s > 0:
            self._check_capacity()
        key = self.issue()
        now = utc_now()
        ended = keys.end_others(self._session, key.row, now + timedelta(seconds=grace_s), now=now)
        after = {"key": key.row.id, "grace_s": grace_s}
        target = self._owner.app_id or self._owner.tenant_id or self._owner.scope
        self._audit("key.rotate", target, before={"ended": ended}, after=after)
        after_commit(self._session, self._forget)
        return key

    # --- parts ------------------------------------------------------------------------------------

    def _get(self, key_id: str) -> ApiKey:
        row = self._session.get(ApiKey, key_id)
        if row is None or keys.owner_of(row) != self._owner:
            raise NotFoundError("there is no such key", param="key_id")
        return row

    def _lock_admin_keys(self) -> list[str]:
        """Return the ids of the admin keys without an expiry, locked; empty for other owners.

        No other request ends one of them before this one commits.
        """
        if self._owner.scope != "admin":
            return []
        return keys.lasting(self._session, self._owner, lock=True)

    def _forget(self) -> None:
        match self._owner.scope:
            case "admin":
                self._authenticator.forget(admin=True)
            case "tenant":
                self._authenticator.forget(tenant_id=self._owner.tenant_id)
            case "app":
                self._authenticator.forget(app_id=self._owner.app_id)

    def _check_capacity(self) -> None:
        if keys.count_valid(self._session, self._owner, utc_now()) >= MAX_KEYS:
            raise ConflictError(
                f"an owner has at most {MAX_KEYS} valid keys; revoke one first",
                code="too_many_keys",
            )

    def _audit(
        self,
        action: str,
        target: str,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        audit.record(
            self._session,
            self._principal,
            action,
            target,
            tenant_id=self._owner.tenant_id,
            before=before,
            after=after,
        )


def _audited(row: ApiKey) -> dict[str, Any]:
    times = {
        name: None if (time := getattr(row, name)) is None else time.isoformat()
        for name in ("expires_at", "revoked_at")
    }
    return {"app": row.app_id, "prefix": row.prefix, "name": row.name, **times}


def shown_once(key: keys.IssuedKey, response: Response) -> NewKeyOut:
    """Return the response that shows a new key; it must not be cached."""
    response.headers["Cache-Control"] = "no-store"
    return NewKeyOut(**KeyOut.model_validate(key.row).model_dump(), api_key=key.plain)


def admin_keys(session: Session, principal: Principal, authenticator: Authenticator) -> KeyRing:
    """Return the admin keys of this deployment."""
    return KeyRing(session, principal, authenticator, DEPLOYMENT)


def keys_page(ring: KeyRing, paging: Paging) -> Page[KeyOut]:
    """Return keys by prefix with their last use, oldest first, including revoked ones."""
    rows, total = ring.page(paging.limit, paging.offset)
    return Page(
        items=[KeyOut.model_validate(row) for row in rows],
        total=total,
        limit=paging.limit,
        offset=paging.offset,
    )
