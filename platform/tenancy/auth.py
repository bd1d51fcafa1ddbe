"""Authentication: API keys to principals, through a small cache. Knows no web framework.

A key is looked up by its keyed hash, off the event loop; it counts as unknown while its app or tenant
is suspended or deleted. Results are cached for 30 s, and for 5 s where servers share an order: a
revocation takes effect in this process at once, on other servers within that time. While the database
does not answer, keys used in the last five minutes, and those of operators used in the last hour, stay
valid and all others get 503: operators need `/metrics` longest when the database is away. Event streams
repeat the check (:meth:`Authenticator.confirm`).
Weakness: a key that another server revokes during such an outage stays valid for that time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hmac import compare_digest

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fairserve.interactions.run_rules import RunRule, known_rules
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.base.errors import (
    AuthenticationError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from fairserve.platform.base.roles import Role
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import ApiKey, App, KeyScope, Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.schemas import Managed
from fairserve.platform.tenancy.apps.origins import Origins
from fairserve.platform.tenancy.apps.user_headers import DEFAULT_USER_HEADERS
from fairserve.platform.tenancy.failed_keys import FailedKeys

CACHE_TTL_S = 30.0
SHARED_TTL_S = 5.0
"""Seconds for which a server that shares its order with others trusts a key without reading it."""
CACHE_ENTRIES = 10_000
STALE_S = 300.0
OPERATOR_STALE_S = 3600.0
"""Seconds for which a key of an operator stays valid while the database does not answer."""
CONFIRM_TTL_S = 1.0
"""Seconds for which all streams of a key share one check of its validity."""
MAX_KEY_CHARS = 256
OPERATORS = "operators"
"""Name of all operators together where a limit is shared between tenants."""
KEY_HEADERS = frozenset({"authorization", "x-api-key"})
"""Headers that a key may be in, in lower case."""
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner and the rights of a valid key, or of a person who signed in to the console."""

    scope: KeyScope
    tenant_id: str | None
    app_id: str | None
    key_id: str
    """Id of the key; empty for a person who signed in without one."""
    actor: str
    """Name in the audit log: the key's visible prefix, or the person."""
    role: Role = "admin"
    """Role of an operator; it restricts no tenant and no app."""
    user_headers: tuple[str, ...] = DEFAULT_USER_HEADERS
    """Headers that name the end user of an app's call, in order."""
    origins: frozenset[str] = frozenset()
    """Origins of the pages in browsers that may read answers to an app's key."""
    run_rules: tuple[RunRule, ...] | None = None
    """Rules that assign an app's calls to runs; None: the server's."""

    @property
    def sharer(self) -> str:
        """Return who shares the server with others: the tenant, or all operators together."""
        return OPERATORS if self.scope == "admin" else self.tenant_id or ""


@dataclass(slots=True)
class _Entry:
    principal: Principal
    expires_at: datetime | None
    looked_up_s: float


class Authenticator:
    """A bounded cache of principals by key, safe to use from any thread.

    Valid and unknown keys have separate caches, so that guessed keys never evict a valid one; and valid
    ones evict keys of the tenant that has most.
    """

    def __init__(
        self,
        sessions: SessionFactory,
        hasher: KeyHasher,
        failed_keys: FailedKeys | None = None,
        *,
        ttl_s: float = CACHE_TTL_S,
        max_entries: int = CACHE_ENTRIES,
        monotonic_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """``failed_keys`` puts failed uses of keys in the audit log."""
        self._sessions = sessions
        self.hasher = hasher
        self.failed_keys = failed_keys
        self.origins = Origins(sessions, monotonic_s)
        """Origins of all apps, for requests that carry no key."""
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._monotonic_s = monotonic_s
        self._now = now
        self._lock = threading.Lock()
        self._known: SharedTable[str, _Entry] = SharedTable(max_entries)
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._confirmed: SharedTable[str, float] = SharedTable(max_entries)
        """Time of the last successful check, by key id."""
        self._generation = 0
        self.on_forget: Callable[[Callable[[Principal], bool]], object] = lambda _: None
        """Called with the condition of the principals whose keys may have changed, after ``forget``."""

    async def authenticate(self, key: str, *, audited: bool = True) -> Principal:
        """Return the principal of a key. Raises AuthenticationError or UnavailableError.

        Reads the database, in a thread, only on a cache miss. Unless ``audited``, the
        caller records failures itself.
        """
        try:
            digest = self._digest(key)
            principal = self._cached(digest)
            if principal is not None:
                return principal
            return await asyncio.to_thread(self._look_up, key, digest)
        except AuthenticationError:
            if audited and self.failed_keys is not None:
                await self.failed_keys.record(key)
            raise

    async def confirm(self, principal: Principal) -> None:
        """Check that the principal's key is still valid. Raises AuthenticationError if it is not.

        While the database does not answer, the key stays valid as in :meth:`authenticate`.
        """
        if not self._recently_confirmed(principal.key_id):
            await asyncio.to_thread(self._confirm, principal)

    def forget(
        self,
        *,
        key_id: str | None = None,
        app_id: str | None = None,
        tenant_id: str | None = None,
        admin: bool = False,
    ) -> None:
        """Drop the cached entries of a key, or of all keys of an app, a tenant or the admins. Call
        it after the commit.

        Lookups in progress may have read before the commit; their results are not cached.
        """

        def concerns(principal: Principal) -> bool:
            return (
                (key_id is not None and principal.key_id == key_id)
                or (app_id is not None and principal.app_id == app_id)
                or (tenant_id is not None and principal.tenant_id == tenant_id)
                or (admin and principal.scope == "admin")
            )

        with self._lock:
            self._generation += 1
            for _, digest, _, entry in list(self._known.items()):
                if concerns(entry.principal):
                    self._known.pop(digest)
            self._unknown.clear()
            self._confirmed = SharedTable(self._confirmed.limit)
        self.origins.forget()
        self.on_forget(concerns)

    def _digest(self, key: str) -> str:
        if not key or len(key) > MAX_KEY_CHARS or not key.isascii():
            raise _invalid_key()
        return self.hasher.hash(key)

    def _cached(self, digest: str) -> Principal | None:
        now_s = self._monotonic_s()
        with self._lock:
            entry = self._known.get(digest)
            if entry is not None and now_s - entry.looked_up_s < self._ttl_s:
                self._check_expiry(entry.expires_at)
                self._known.touch(digest)
                return entry.principal
            looked_up_s = self._unknown.get(digest)
        if looked_up_s is not None and now_s - looked_up_s < self._ttl_s:
            raise _invalid_key()
        return None

    def _look_up(self, key: str, digest: str) -> Principal:
        with self._lock:
            generation = self._generation
        try:
            entry = self._read(key)
        except SQLAlchemyError as error:
            return self._stale(digest, error)
        with self._lock:
            if generation == self._generation:
                self._store(digest, entry)
        if entry is None:
            raise _invalid_key()
        self._check_expiry(entry.expires_at)
        return entry.principal

    def _store(self, digest: str, entry: _Entry | None) -> None:
        if entry is None:
            self._known.pop(digest)
            self._unknown[digest] = self._monotonic_s()
            self._unknown.move_to_end(digest)
            if len(self._unknown) > self._max_entries:
                self._unknown.popitem(last=False)
        else:
            self._known.put((entry.principal.sharer,), digest, entry)

    def _recently_confirmed(self, key_id: str) -> bool:
        with self._lock:
            confirmed_s = self._confirmed.get(key_id)
        return confirmed_s is not None and self._monotonic_s() - confirmed_s < CONFIRM_TTL_S

    def _confirm(self, principal: Principal) -> None:
        key_id, sharer = principal.key_id, principal.sharer
        if self._recently_confirmed(key_id):
            return  # another stream checked the key while this one waited for a thread
        with self._lock:
            generation = self._generation
        now_s = self._monotonic_s()
        try:
            found = self._working_key(ApiKey.id == key_id)
        except SQLAlchemyError:
            with self._lock:
                # The time of a key that was never confirmed starts now.
                confirmed_s = self._confirmed.get(key_id)
                if confirmed_s is None:
                    confirmed_s = now_s
                    self._confirmed.put((sharer,), key_id, now_s)
            if now_s - confirmed_s >= self._trusted_s(principal):
                raise _invalid_key() from None
            return
        expires_at = None if found is None else found[0].expires_at
        if found is None:
            raise _invalid_key()
        self._check_expiry(expires_at)
        with self._lock:
            if generation == self._generation:
                self._confirmed.put((sharer,), key_id, now_s)

    def _working_key(self, which: ColumnElement[bool]) -> tuple[ApiKey, Principal] | None:
        """Return the key and its principal.

        None: it is unknown or revoked, or its tenant or app is suspended or deleted.
        """
        with self._sessions() as session:
            row = (
                read_only(session)
                .execute(
                    select(
                        ApiKey,
                        App.user_headers,
                        App.cors_origins,
                        App.run_rules,
                        Tenant.suspended_at,
                        Tenant.deleted_at,
                        App.suspended_at,
                        App.deleted_at,
                    )
                    .outerjoin(Tenant, Tenant.id == ApiKey.tenant_id)
                    .outerjoin(App, App.id == ApiKey.app_id)
                    .where(which)
                )
                .first()
            )
        if row is None:
            return None
        key, user_headers, origins, rules, *stopped_at = row
        if any(time is not None for time in (key.revoked_at, *stopped_at)):
            return None
        headers = DEFAULT_USER_HEADERS if user_headers is None else tuple(user_headers)
        return key, Principal(
            key.scope,
            key.tenant_id,
            key.app_id,
            key.id,
            key.prefix,
            key.role,
            user_headers=headers,
            origins=frozenset(origins or ()),
            run_rules=None if rules is None else known_rules(rules),
        )

    def _read(self, key: str) -> _Entry | None:
        candidates = self.hasher.candidates(key)
        looked_up_s = self._monotonic_s()
        found = self._working_key(ApiKey.key_hash.in_(candidates))
        if found is None:
            return None
        row, principal = found
        if not any(compare_digest(row.key_hash, candidate) for candidate in candidates):
            return None
        self._note_use(row, candidates[0])
        return _Entry(principal, row.expires_at, looked_up_s)

    def _note_use(self, row: ApiKey, present_hash: str) -> None:
        """Store the key's hash under the current secret and its last use, to the hour."""
        changes: dict[str, object] = {}
        hour = self._now().replace(minute=0, second=0, microsecond=0)
        used_at = max(hour, row.created_at)
        if row.last_used_at is None or used_at > row.last_used_at:
            changes["last_used_at"] = used_at
        if row.key_hash != present_hash:
            changes |= {"key_hash": present_hash, "secret_id": self.hasher.secret_id}
        if not changes:
            return
        try:
            with self._sessions.begin() as session:
                session.execute(
                    update(ApiKey)
                    .where(ApiKey.id == row.id, ApiKey.key_hash == row.key_hash)
                    .values(**changes)
                )
        except DBAPIError:
            pass  # authentication works on a database that cannot be written at the moment

    def _stale(self, digest: str, error: SQLAlchemyError) -> Principal:
        with self._lock:
            entry = self._known.get(digest)
        now_s = self._monotonic_s()
        if entry is None or now_s - entry.looked_up_s >= self._trusted_s(entry.principal):
            raise UnavailableError(
                "the API key cannot be checked: the database does not answer",
                headers={"Retry-After": "5"},
            ) from error
        self._check_expiry(entry.expires_at)
        return entry.principal

    def _trusted_s(self, principal: Principal) -> float:
        """Return for how long a key stays valid without the database."""
        return OPERATOR_STALE_S if principal.scope == "admin" else STALE_S

    def _check_expiry(self, expires_at: datetime | None) -> None:
        if expires_at is not None and expires_at <= self._now():
            raise AuthenticationError(
                f"the API key expired at {expires_at.isoformat()}",
                code="expired_api_key",
                headers=_CHALLENGE,
            )


def _invalid_key() -> AuthenticationError:
    # One message for unknown and revoked keys, and those of suspended owners.
    return AuthenticationError("the API key is unknown or revoked", headers=_CHALLENGE)


def key_of(headers: Mapping[str, str]) -> str:
    """Return the key of a request: of ``Authorization: Bearer <key>``, or of ``x-api-key``.

    ``headers`` has lower-case names, and may have a name several times. Raises AuthenticationError
    without a key, and InvalidRequestError for two different keys, of which proxies and logs could see
    either.
    """
    keys: dict[str, str] = {}
    for name, value in headers.items():
        if name == "authorization":
            scheme, _, key = value.strip().partition(" ")
            key = key.strip() if scheme.lower() == "bearer" else ""
        elif name == "x-api-key":
            key = value.strip()
        else:
            continue
        if key:
            keys.setdefault(key, name)
    if len(keys) > 1:
        names = " and ".join(dict.fromkeys(keys.values()))
        raise InvalidRequestError(
            f"the request has {len(keys)} different keys, in {names}; send one of them",
            param=list(keys.values())[-1],
        )
    if not keys:
        raise AuthenticationError(
            "an API key is needed: Authorization: Bearer sk-fs-..., or x-api-key: sk-fs-...",
            headers=_CHALLENGE,
        )
    return next(iter(keys))


def require_scope(principal: Principal, scope: KeyScope) -> Principal:
    """Return the principal if its key has this scope. Raises PermissionDeniedError."""
    if principal.scope != scope:
        article = "a" if scope == "tenant" else "an"
        raise PermissionDeniedError(
            f"this needs {article} {scope} key; the key given is for {principal.scope}"
        )
    return principal


def check_manager(principal: Principal, body: Managed) -> None:
    """Raise PermissionDeniedError if a key of a tenant sets who manages an object."""
    if "managed_by" in body.model_fields_set and principal.scope != "admin":
        raise PermissionDeniedError("managed_by needs an admin key", param="managed_by")


def tenant_principal(principal: Principal, named: str | None) -> Principal:
    """Return the owner of a tenant key, or of an admin key that names a tenant.

    The principal returned always has a ``tenant_id``; an admin's stays ``admin`` in scope, and
    whether its tenant exists is not checked here. Another tenant's id raises NotFoundError.
    """
    if principal.scope == "admin":
        if not named:
            raise InvalidRequestError(
                "an admin key names a tenant here: ?tenant=tn_...", param="tenant"
            )
        return replace(principal, tenant_id=named)
    require_scope(principal, "tenant")
    if named is not None and named != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal
