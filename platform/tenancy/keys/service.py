"""Operations on the keys of one owner: add, list, rename, revoke, and rotate with an overlap.

An owner is a tenant, an app, or the deployment, which owns the admin keys. At least one valid key of
role admin without an expiry remains, so that operators cannot lock themselves out. A key changes no key
of a higher role, and creates none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from fastapi import Response
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, InvalidRequestError, NotFoundError
from fairserve.platform.base.roles import Role
from fairserve.platform.db import audit, keys
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.keys import KeyOwner
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import KeyOut, NewKeyOut, Page, Paging
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.auth import Authenticator, Principal
from fairserve.platform.tenancy.keys.schemas import (
    AdminKeyCreate,
    AdminKeyPatch,
    KeyCreate,
    NewAdminKeyOut,
)
from fairserve.platform.tenancy.roles import require_role

Shape = TypeVar("Shape", bound=KeyOut)
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

    def issue(
        self, name: str = "", expires_at: datetime | None = None, role: Role = "admin"
    ) -> keys.IssuedKey:
        """Create a key without a check of their number."""
        self._require_role(role)
        key = keys.issue(
            self._session,
            self._authenticator.hasher,
            self._owner.scope,
            tenant_id=self._owner.tenant_id,
            app_id=self._owner.app_id,
            name=name,
            role=role,
            expires_at=expires_at,
        )
        self._audit("key.create", key.row.id, after=_audited(key.row))
        return key

    def add(self, body: KeyCreate) -> keys.IssuedKey:
        """Create a further key; raises ConflictError at the maximum number."""
        _check_expiry(body.expires_at)
        self._lock_admin_keys()
        self._check_capacity()
        role = body.role if isinstance(body, AdminKeyCreate) else "admin"
        return self.issue(body.name or "", body.expires_at, role)

    def page(self, paging: Paging) -> tuple[Sequence[ApiKey], int]:
        """Return a page of the keys, revoked ones included, oldest first, and their number."""
        return read_page(self._session, keys.listed(self._owner), paging)

    def rename(self, key_id: str, name: str) -> ApiKey:
        """Change the display name of a key."""
        row = self._get(key_id)
        if row.name != name:
            before = _audited(row)
            row.name = name
            self._audit("key.change", row.id, before=before, after=_audited(row))
        return row

    def change(self, key_id: str, patch: AdminKeyPatch) -> ApiKey:
        """Change name, role or expiry of an admin key.

        Raises ConflictError for role and expiry of a key that has ended, or that is the last key of role
        admin without an expiry.
        """
        lasting = self._lock_admin_keys()
        row = self._get(key_id)
        self._require_role(row.role)
        role = row.role if patch.role is None else patch.role
        expires_at = patch.expires_at if "expires_at" in patch.model_fields_set else row.expires_at
        if (role, expires_at) != (row.role, row.expires_at):
            self._require_role(role)
            _check_expiry(expires_at)
            if row.revoked_at is not None or _is_past(row.expires_at):
                raise ConflictError("the key is revoked or expired; create another one")
            if role != "admin" or expires_at is not None:
                self._keep_one(lasting, key_id)
        before = _audited(row)
        row.name = row.name if patch.name is None else patch.name
        row.role, row.expires_at = role, expires_at
        if (after := _audited(row)) != before:
            self._audit("key.change", row.id, before=before, after=after)
            after_commit(self._session, lambda: self._authenticator.forget(key_id=key_id))
        return row

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key; idempotent. Raises ConflictError for the last admin key."""
        lasting = self._lock_admin_keys()
        row = self._get(key_id)
        self._require_role(row.role)
        if row.revoked_at is None:
            if self._owner.scope == "admin":
                self._keep_one(lasting, key_id)
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

    def _require_role(self, role: Role) -> None:
        """Raise PermissionDeniedError for an admin key of a higher role than the principal's."""
        if self._owner.scope == "admin":
            require_role(self._principal.role, role)

    @staticmethod
    def _keep_one(lasting: Sequence[str], key_id: str) -> None:
        """Raise ConflictError unless a lasting admin key remains without this one."""
        if not set(lasting) - {key_id}:
            raise ConflictError(
                "this is the last key of role admin without an expiry; create another one first:"
                " POST /admin/keys",
                code="last_admin_key",
            )

    def _lock_admin_keys(self) -> list[str]:
        """Return the ids of the lasting keys of role admin, locked; empty for other owners.

        No other request ends one of them before this one commits.
        """
        if self._owner.scope != "admin":
            return []
        return keys.lasting_admins(self._session)

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
    role = {"role": row.role} if row.scope == "admin" else {}
    return {"app": row.app_id, "prefix": row.prefix, "name": row.name, **role, **times}


def _is_past(time: datetime | None) -> bool:
    return time is not None and time <= utc_now()


def _check_expiry(expires_at: datetime | None) -> None:
    if _is_past(expires_at):
        raise InvalidRequestError("expires_at is in the past", param="expires_at")


def shown_once(key: keys.IssuedKey, response: Response) -> NewKeyOut:
    """Return the response that shows a new key; it must not be cached."""
    response.headers["Cache-Control"] = "no-store"
    return NewKeyOut(**KeyOut.model_validate(key.row).model_dump(), api_key=key.plain)


def shown_with_owner(key: keys.IssuedKey, response: Response) -> dict[str, Any]:
    """Return the fields that show the first key of a new tenant or app."""
    response.headers["Cache-Control"] = "no-store"
    return {"key": KeyOut.model_validate(key.row), "api_key": key.plain}


def admin_key_shown_once(key: keys.IssuedKey, response: Response) -> NewAdminKeyOut:
    """Return the response that shows a new admin key; it must not be cached."""
    shown = shown_once(key, response)
    return NewAdminKeyOut(**shown.model_dump(), role=key.row.role)


def admin_keys(session: Session, principal: Principal, authenticator: Authenticator) -> KeyRing:
    """Return the admin keys of this deployment."""
    return KeyRing(session, principal, authenticator, DEPLOYMENT)


def keys_page(ring: KeyRing, paging: Paging, shape: type[Shape]) -> Page[Shape]:
    """Return keys by prefix with their last use, oldest first, including revoked ones."""
    rows, total = ring.page(paging)
    return Page.of([shape.model_validate(row) for row in rows], total, paging)
