"""The cache of all apps' origins: which apps count, changes, other servers' changes, outages."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.tenancy.apps.origins import TTL_S, Origins

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ONE, TWO = "https://one.example", "https://two.example"


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def origins(sessions, clock):
    add(sessions, "one", ONE)
    return Origins(sessions, clock)


def add(sessions, name, origin, *, tenant=None, **app):
    with sessions.begin() as session:
        session.add(Tenant(id=f"tn_{name}", name=name, created_at=NOW, **(tenant or {})))
        session.flush()
        fields = {"calls_per_interaction": 1, "idle_timeout_s": 1, "created_at": NOW, **app}
        ids = {"id": f"app_{name}", "tenant_id": f"tn_{name}", "name": name}
        session.add(App(**ids, cors_origins=[origin], **fields))


async def test_only_apps_that_work_have_origins(origins, sessions):
    gone = {
        "suspended": {"suspended_at": NOW},
        "deleted": {"deleted_at": NOW},
        "of suspended": {"tenant": {"suspended_at": NOW}},
        "of deleted": {"tenant": {"deleted_at": NOW}},
    }
    for name, fields in gone.items():
        add(sessions, name, f"https://{name}.example", **fields)
    assert await origins.allow(ONE)
    assert not any([await origins.allow(f"https://{name}.example") for name in gone])


async def test_one_read_serves_many_requests_until_it_is_old(origins, sessions, clock):
    assert await asyncio.gather(*(origins.allow(each) for each in [ONE, TWO] * 50)) == (
        [True, False] * 50
    )
    assert sessions.opened == 1, "strangers cannot make the database work"
    add(sessions, "two", TWO)
    clock.now_s += TTL_S - 1
    assert not await origins.allow(TWO)
    clock.now_s += 1
    assert await origins.allow(TWO), "another server's change"
    assert sessions.opened == 2


async def test_a_change_holds_even_if_a_read_from_before_it_ends_later(origins, sessions):
    reading, changed = threading.Event(), threading.Event()

    def hook():
        reading.set()
        assert changed.wait(30)

    sessions.hook = hook
    early = asyncio.create_task(origins.allow(ONE))
    await asyncio.to_thread(reading.wait, 30)
    sessions.hook = None
    with sessions.begin() as session:
        session.get(App, "app_one").cors_origins = [TWO]
    origins.forget()
    changed.set()
    assert not await early
    assert await origins.allow(TWO)


async def test_the_last_known_ones_hold_while_the_database_is_away(
    origins, sessions, clock, caplog
):
    assert await origins.allow(ONE)
    sessions.broken = True
    clock.now_s += TTL_S
    assert await origins.allow(ONE)
    origins.forget()
    assert await origins.allow(ONE)
    assert "the origins of apps cannot be read: OperationalError" in caplog.text
    sessions.broken = False
    with sessions.begin() as session:
        session.get(App, "app_one").cors_origins = None
    clock.now_s += TTL_S
    assert not await origins.allow(ONE)
