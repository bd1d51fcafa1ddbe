"""Test console sessions: their start, and everything that ends them."""

import asyncio
from datetime import timedelta

import pytest
from databases import ON_BOTH, ON_POSTGRESQL
from sqlalchemy import event, func, select

from fairserve.platform.background.retention import delete_old
from fairserve.platform.console import sessions
from fairserve.platform.console.sessions import MOST_PER_OWNER, begin, end, find
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.console import ConsoleSession
from fairserve.platform.server.settings import Settings
from fairserve.platform.tenancy.keys.sessions import delete_expired


class World:
    """A tenant that signs in, with a manual clock."""

    def __init__(self, management):
        self.management = management
        self.sessions = management.state.session_factory
        self.settings = Settings(
            data_dir=management.state.settings.db.data_dir,
            console_session_hours=8,
        )
        self.tenant = management.new_tenant("one")
        self.now = utc_now()

    def sign_in(self, key=None):
        authenticator = self.management.state.authenticator
        principal = asyncio.run(authenticator.authenticate(key or self.tenant["api_key"]))
        with self.sessions.begin() as session:
            return begin(session, principal, self.settings.tenancy, self.now)

    def viewer(self, token):
        return find(self.sessions, token, self.settings.tenancy, self.now)

    def later(self, **passed):
        self.now += timedelta(**passed)

    @property
    def rows(self):
        with self.sessions() as session:
            return session.scalar(select(func.count(ConsoleSession.id)))


@pytest.fixture
def world(management):
    return World(management)


def test_a_cookie_represents_its_key(world):
    token = world.sign_in()
    viewer = world.viewer(token)
    assert viewer.tenant_id == world.tenant["id"]
    assert viewer.tenant_name == "one"
    assert not viewer.is_admin
    assert token not in repr(viewer)
    assert viewer.csrf not in repr(viewer)
    assert world.viewer(world.sign_in(world.management.admin_key)).is_admin
    for wrong in ("", token[:-1], token + "x", "x" * 1000, viewer.session_id, viewer.csrf):
        assert world.viewer(wrong) is None


def test_an_idle_session_expires(world):
    token = world.sign_in()
    for _ in range(7):
        world.later(minutes=59)
        assert world.viewer(token), "each look counts"
    world.later(minutes=60)
    assert world.viewer(token) is None


def test_an_active_session_expires_after_its_lifetime(world):
    token = world.sign_in()
    viewer = world.viewer(token)
    for _ in range(15):
        world.later(minutes=30)
        assert sessions.still_holds(world.sessions, viewer, world.settings.tenancy, world.now)
    world.later(minutes=30)
    assert not sessions.still_holds(world.sessions, viewer, world.settings.tenancy, world.now)
    assert world.viewer(token) is None


def test_an_open_page_counts_as_activity(world):
    token = world.sign_in()
    viewer = world.viewer(token)
    for _ in range(4):
        world.later(minutes=50)
        assert sessions.still_holds(world.sessions, viewer, world.settings.tenancy, world.now)
    assert world.viewer(token)


def test_a_session_ends_with_its_key(world):
    keys = f"/admin/tenants/{world.tenant['id']}/keys"
    admin = world.management.admin_key
    key = world.management.call(admin, "POST", keys, status=201)
    token, other = world.sign_in(key["api_key"]), world.sign_in()
    world.management.call(admin, "DELETE", f"{keys}/{key['id']}")
    assert world.viewer(token) is None
    assert world.viewer(other)


@pytest.mark.parametrize("change", [("PATCH", {"suspended": True}), ("DELETE", None)])
def test_a_session_ends_with_its_tenant(world, change):
    token = world.sign_in()
    method, body = change
    path = f"/admin/tenants/{world.tenant['id']}"
    world.management.call(world.management.admin_key, method, path, body)
    assert world.viewer(token) is None


def test_signing_out_ends_one_session(world):
    token, other = world.sign_in(), world.sign_in()
    with world.sessions.begin() as session:
        end(session, world.viewer(token).session_id)
    assert world.viewer(token) is None
    assert world.viewer(other)


@ON_POSTGRESQL
def test_sessions_of_a_key_are_bounded_and_the_oldest_ends(world):
    tokens = []
    for _ in range(MOST_PER_OWNER + 3):
        world.later(seconds=1)
        tokens.append(world.sign_in())
    admin = world.sign_in(world.management.admin_key)
    assert world.rows == MOST_PER_OWNER + 1
    assert [world.viewer(token) is None for token in tokens[:4]] == [True, True, True, False]
    assert world.viewer(admin)


@ON_POSTGRESQL
def test_expired_sessions_are_deleted(world):
    world.sign_in()
    world.later(minutes=61)
    world.sign_in(world.management.admin_key)
    assert world.rows == 1, "by the next sign-in"
    world.later(hours=9)
    with world.sessions.begin() as session:
        assert delete_expired(session, world.now) == 1
    assert world.rows == 0
    world.now = utc_now() - timedelta(days=1)
    world.sign_in()
    while delete_old(world.sessions, world.settings):
        pass
    assert world.rows == 0, "and by the retention job"


@ON_BOTH
def test_a_session_is_valid_while_the_database_cannot_be_written(world, engine):
    token = world.sign_in()
    world.later(minutes=2)
    text = "PRAGMA query_only = ON" if engine.name == "sqlite" else "SET TRANSACTION READ ONLY"
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(text))
    assert world.viewer(token).tenant_id == world.tenant["id"]
