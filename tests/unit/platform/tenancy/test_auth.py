"""Test keys and the authenticator: cache, expiry, revocation, secret rotation, outages."""

import asyncio
import base64
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from starlette.datastructures import Headers

from fairserve.platform.base.errors import (
    AuthenticationError,
    InvalidRequestError,
    UnavailableError,
)
from fairserve.platform.db import keys
from fairserve.platform.db.identity import ApiKey, App, Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.tenancy.auth import Authenticator, key_of

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
OLD, NEW = b"o" * 32, b"n" * 32


def principal_of(authenticator, key):
    return asyncio.run(authenticator.authenticate(key))


class Clock:
    """Both clocks of the authenticator, advanced together."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def now(self):
        return NOW + timedelta(seconds=self.now_s - 1000.0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hasher():
    return KeyHasher(NEW)


@pytest.fixture
def authenticator(sessions, clock, hasher):
    return Authenticator(sessions, hasher, monotonic_s=clock.monotonic, now=clock.now)


@pytest.fixture
def app_key(sessions, hasher):
    """A key of an app, with the id of its row."""
    with sessions.begin() as session:
        session.add(Tenant(id="tn_1", name="t", created_at=NOW))
        session.flush()
        session.add(
            App(
                id="app_1",
                tenant_id="tn_1",
                name="a",
                calls_per_interaction=1,
                idle_timeout_s=1,
                created_at=NOW,
            )
        )
        session.flush()
        return keys.issue(session, hasher, "app", tenant_id="tn_1", app_id="app_1")


def change(sessions, key, **values):
    with sessions.begin() as session:
        row = session.get(ApiKey, key.row.id)
        for name, value in values.items():
            setattr(row, name, value)


def test_keys_have_256_random_bits_and_a_scope_letter():
    for scope, letter in (("admin", "a"), ("tenant", "t"), ("app", "p")):
        key = keys.generate_key(scope)
        head, random = key[:8], key[8:]
        assert head == f"sk-fs-{letter}-"
        assert len(random) == 43
        assert len(base64.urlsafe_b64decode(random + "=")) == 32
        assert key != keys.generate_key(scope)


def test_only_the_hash_and_a_prefix_are_stored(sessions, app_key):
    with sessions() as session:
        row = session.scalars(select(ApiKey)).one()
    assert app_key.plain not in str(vars(row))
    assert row.prefix == app_key.plain[:12]
    assert app_key.plain not in repr(app_key)
    assert len(row.key_hash) == 64
    assert row.key_hash != KeyHasher(OLD).hash(app_key.plain)


def test_a_key_is_looked_up_once_per_ttl(authenticator, sessions, clock, app_key):
    first = principal_of(authenticator, app_key.plain)
    assert (first.scope, first.tenant_id, first.app_id) == ("app", "tn_1", "app_1")
    assert (first.key_id, first.actor) == (app_key.row.id, app_key.row.prefix)
    opened = sessions.opened
    clock.now_s += 29
    assert principal_of(authenticator, app_key.plain) == first
    assert sessions.opened == opened
    clock.now_s += 1
    assert principal_of(authenticator, app_key.plain) == first
    assert sessions.opened == opened + 1


def test_a_miss_is_looked_up_off_the_event_loop(authenticator, sessions, app_key):
    seen = []
    sessions.hook = lambda: seen.append(threading.current_thread())
    principal_of(authenticator, app_key.plain)
    assert seen
    assert threading.main_thread() not in seen


def test_unknown_keys_are_cached(authenticator, sessions, clock):
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            principal_of(authenticator, "sk-fs-p-unknown")
    assert sessions.opened == 1
    clock.now_s += 30
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, "sk-fs-p-unknown")
    assert sessions.opened == 2


@pytest.mark.parametrize("key", ["", "x" * 257, "schlüssel", "\ud800"])
def test_malformed_keys_are_not_looked_up(authenticator, sessions, key):
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, key)
    assert sessions.opened == 0


def test_the_cache_is_bounded_and_guesses_evict_no_valid_key(sessions, clock, hasher, app_key):
    authenticator = Authenticator(
        sessions, hasher, max_entries=3, monotonic_s=clock.monotonic, now=clock.now
    )
    principal_of(authenticator, app_key.plain)
    for number in range(10):
        with pytest.raises(AuthenticationError):
            principal_of(authenticator, f"guess {number}")
    opened = sessions.opened
    principal_of(authenticator, app_key.plain)
    assert sessions.opened == opened
    assert len(authenticator._unknown) == 3
    with sessions.begin() as session:
        more = [keys.issue(session, hasher, "admin").plain for _ in range(4)]
    for plain in more:
        principal_of(authenticator, plain)
    assert len(authenticator._known) == 3


def test_a_revocation_in_another_process_holds_within_the_ttl(
    authenticator, sessions, clock, app_key
):
    principal_of(authenticator, app_key.plain)
    change(sessions, app_key, revoked_at=NOW)
    clock.now_s += 29
    principal_of(authenticator, app_key.plain)
    clock.now_s += 1
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, app_key.plain)


@pytest.mark.parametrize(
    "which",
    [{"key_id": None}, {"app_id": "app_1"}, {"tenant_id": "tn_1"}],
    ids=lambda w: next(iter(w)),
)
def test_a_revocation_in_this_process_holds_immediately(authenticator, sessions, app_key, which):
    principal_of(authenticator, app_key.plain)
    change(sessions, app_key, revoked_at=NOW)
    authenticator.forget(**{name: value or app_key.row.id for name, value in which.items()})
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, app_key.plain)


def test_a_lookup_that_overlaps_a_revocation_is_not_cached(authenticator, sessions, app_key):
    read = authenticator._read

    def read_then_revoke(key):
        entry = read(key)
        change(sessions, app_key, revoked_at=NOW)
        authenticator.forget(key_id=app_key.row.id)
        return entry

    authenticator._read = read_then_revoke
    principal_of(authenticator, app_key.plain)  # its lookup began before the revocation
    authenticator._read = read
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, app_key.plain)


def test_cached_keys_expire(authenticator, sessions, clock, app_key):
    change(sessions, app_key, expires_at=NOW + timedelta(seconds=10))
    principal_of(authenticator, app_key.plain)
    clock.now_s += 9.5
    principal_of(authenticator, app_key.plain)
    clock.now_s += 0.5
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, app_key.plain)
    clock.now_s += 60
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, app_key.plain)


@pytest.mark.parametrize("column", ["suspended_at", "deleted_at"])
@pytest.mark.parametrize(("table", "id"), [(Tenant, "tn_1"), (App, "app_1")])
def test_keys_of_suspended_or_deleted_owners_are_invalid(
    authenticator, sessions, clock, app_key, table, id, column
):
    for time, works in ((NOW, False), (None, True)):
        with sessions.begin() as session:
            setattr(session.get(table, id), column, time)
        clock.now_s += 30
        if works:
            assert principal_of(authenticator, app_key.plain).app_id == "app_1"
        else:
            with pytest.raises(AuthenticationError):
                principal_of(authenticator, app_key.plain)


def test_last_use_is_stored_with_hour_precision(authenticator, sessions, clock, app_key):
    def last_used():
        with sessions() as session:
            return session.get(ApiKey, app_key.row.id).last_used_at

    created_at = NOW - timedelta(minutes=10)
    change(sessions, app_key, created_at=created_at)
    principal_of(authenticator, app_key.plain)
    assert last_used() == created_at, "12:20, not 12:00: a key is not used before it is made"
    clock.now_s += 60
    principal_of(authenticator, app_key.plain)
    assert last_used() == created_at
    clock.now_s += 3000  # 13:21
    principal_of(authenticator, app_key.plain)
    assert last_used() == NOW.replace(hour=13, minute=0)


def test_a_key_survives_the_rotation_of_the_secret(sessions, clock, hasher, app_key):
    newer = b"2" * 32

    def authenticate(hasher):
        fresh = Authenticator(sessions, hasher, monotonic_s=clock.monotonic, now=clock.now)
        return principal_of(fresh, app_key.plain)

    with pytest.raises(AuthenticationError):
        authenticate(KeyHasher(newer))
    principal = authenticate(KeyHasher(newer, previous=NEW))
    assert principal.key_id == app_key.row.id
    with sessions() as session:
        row = session.get(ApiKey, app_key.row.id)
    assert row.key_hash == KeyHasher(newer).hash(app_key.plain)
    assert row.secret_id == KeyHasher(newer).secret_id != hasher.secret_id
    assert authenticate(KeyHasher(newer)) == principal
    with pytest.raises(AuthenticationError):
        authenticate(hasher)


def test_cached_keys_work_during_a_database_outage(authenticator, sessions, clock, app_key):
    principal_of(authenticator, app_key.plain)
    sessions.broken = True
    clock.now_s += 299
    principal_of(authenticator, app_key.plain)
    with pytest.raises(UnavailableError) as caught:
        principal_of(authenticator, "sk-fs-p-not-seen-before")
    assert "Retry-After" in caught.value.headers
    clock.now_s += 1
    with pytest.raises(UnavailableError):
        principal_of(authenticator, app_key.plain)
    sessions.broken = False
    principal_of(authenticator, app_key.plain)


def test_the_first_admin_key_is_created_and_printed_once(sessions, hasher, authenticator):
    plain = keys.ensure_admin_key(sessions, hasher)
    assert principal_of(authenticator, plain).scope == "admin"
    assert keys.ensure_admin_key(sessions, hasher) is None


def test_a_configured_admin_key_is_used_and_never_printed(sessions, hasher, authenticator):
    configured = "an operator's own key, " + "x" * 20
    for _ in range(2):
        assert keys.ensure_admin_key(sessions, hasher, configured) is None
    assert principal_of(authenticator, configured).scope == "admin"
    with sessions() as session:
        row = session.scalars(select(ApiKey)).one()
    assert row.prefix == configured[:4]


def test_a_revoked_configured_admin_key_stays_revoked(sessions, hasher, authenticator):
    configured = "c" * 40
    keys.ensure_admin_key(sessions, hasher, configured)
    with sessions.begin() as session:
        session.scalars(select(ApiKey)).one().revoked_at = NOW
    keys.ensure_admin_key(sessions, hasher, configured)
    with pytest.raises(AuthenticationError):
        principal_of(authenticator, configured)


def confirm(authenticator, principal):
    asyncio.run(authenticator.confirm(principal))


def test_streams_of_a_key_share_a_check(authenticator, sessions, clock, app_key):
    principal = principal_of(authenticator, app_key.plain)
    opened = sessions.opened
    for _ in range(5):
        confirm(authenticator, principal)
    assert sessions.opened == opened + 1
    clock.now_s += 1
    confirm(authenticator, principal)
    assert sessions.opened == opened + 2


@pytest.mark.parametrize("ends", ["revoked_at", "expires_at"])
def test_a_stream_notices_that_its_key_has_ended(authenticator, sessions, clock, app_key, ends):
    principal = principal_of(authenticator, app_key.plain)
    confirm(authenticator, principal)
    change(sessions, app_key, **{ends: NOW})
    clock.now_s += 1
    with pytest.raises(AuthenticationError):
        confirm(authenticator, principal)


def test_a_local_revocation_is_noticed_at_the_next_check(authenticator, sessions, app_key):
    principal = principal_of(authenticator, app_key.plain)
    confirm(authenticator, principal)
    change(sessions, app_key, revoked_at=NOW)
    authenticator.forget(key_id=principal.key_id)
    with pytest.raises(AuthenticationError):
        confirm(authenticator, principal)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_stream_survives_a_short_outage(authenticator, sessions, clock, app_key, confirmed):
    principal = principal_of(authenticator, app_key.plain)
    if confirmed:
        confirm(authenticator, principal)
    sessions.broken = True
    clock.now_s += 1
    confirm(authenticator, principal)
    clock.now_s += 298
    confirm(authenticator, principal)
    clock.now_s += 2
    with pytest.raises(AuthenticationError):
        confirm(authenticator, principal)
    sessions.broken = False
    confirm(authenticator, principal)


def bearer(key):
    return (b"authorization", b"Bearer " + key)


def own(key):
    return (b"x-api-key", key)


@pytest.mark.parametrize(
    "raw",
    [
        [bearer(b"one"), own(b"two")],
        [bearer(b"one"), bearer(b"two")],
        [own(b"one"), own(b"two")],
        [(b"authorization", b"Basic dXNlcg=="), bearer(b"one"), bearer(b"two")],
        [bearer(b"one"), bearer(b"one"), own(b"one"), own(b"two")],
    ],
)
def test_different_keys_in_one_request_are_rejected(raw):
    """A proxy may check one of them, and the server the other."""
    with pytest.raises(InvalidRequestError, match="2 different keys") as rejected:
        key_of(Headers(raw=raw))
    assert rejected.value.param in ("authorization", "x-api-key")
    assert "one" not in rejected.value.message.replace("send one", "")
    assert "two" not in rejected.value.message


@pytest.mark.parametrize(
    "raw",
    [
        [bearer(b"one")],
        [own(b" one ")],
        [bearer(b"one"), bearer(b" one"), own(b"one")],
        [(b"authorization", b"Basic dXNlcg=="), own(b"one")],
        [(b"authorization", b"bEARER   one ")],
        [own(b""), bearer(b"one")],
    ],
)
def test_one_key_may_be_named_several_times(raw):
    assert key_of(Headers(raw=raw)) == "one"
    assert key_of(dict(Headers(raw=raw[-1:]).items())) == "one"


@pytest.mark.parametrize("raw", [[], [bearer(b"")], [own(b" ")], [(b"authorization", b"Bearer")]])
def test_a_request_without_a_key_is_rejected(raw):
    with pytest.raises(AuthenticationError, match="an API key is needed"):
        key_of(Headers(raw=raw))
