"""The database lease never allows two active servers, through outages, partitions and restarts."""

import random
import sys
from contextlib import contextmanager

import databases
import psycopg
import pytest
from gateway_server import ThreadServer
from processes import eventually
from scripted_worker import ScriptedWorker
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError
from whole_server import WholeServer

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.lease import Lease, LeaseLostError, LeaseTakenError, fenced
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.server import cli

LEASE_S = 60.0


class CutDatabase:
    """Lets no transaction of an engine begin while it is ``away``."""

    def __init__(self, *engines):
        self.away = False
        for engine in engines:
            event.listen(engine, "begin", self._begin)

    def _begin(self, connection):
        if self.away:
            raise OperationalError("BEGIN", {}, ConnectionError("the database is away"))

    @contextmanager
    def cut(self):
        self.away = True
        try:
            yield
        finally:
            self.away = False


class TurnedClock:
    """A clock whose seconds pass only when a test adds them."""

    def __init__(self, now_s=0.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def turn(self, seconds):
        self.now_s += seconds


class Server:
    """A lease with its own clock and connection; ``step`` is one second of its thread."""

    def __init__(self, url, name, clock, *, guard=None):
        self.engine = connect(url, pool_size=1)
        self.cut = CutDatabase(self.engine)
        self.clock = clock
        self.lease = Lease(
            self.engine, lease_s=LEASE_S, holder=name, guard=guard or name, clock=clock
        )

    def write(self, tenant_id):
        sessions = fenced(session_factory(self.engine), self.lease)
        with sessions.begin() as session:
            session.add(Tenant(id=tenant_id, name="a", created_at=utc_now()))

    @property
    def admits(self):
        return not self.lease.over


@pytest.fixture
def server(engine):
    """Return a factory of servers of one database."""
    made = []
    url = engine.url.render_as_string(hide_password=False)

    def make(name, clock=None, **more):
        made.append(Server(url, name, clock or TurnedClock(len(made) * 1e4), **more))
        return made[-1]

    yield make
    for each in made:
        each.engine.dispose()


def holding(make, name="one"):
    server = make(name)
    assert server.lease.try_acquire() is None
    return server


def test_an_outage_within_the_lease_interrupts_nothing(server):
    one = holding(server)
    with one.cut.cut():
        for _ in range(18):
            one.clock.turn(1)
            assert not one.lease.renew()
            assert one.admits
    assert one.lease.renew()
    one.clock.turn(LEASE_S - 1)
    assert one.admits, "its lease is a new one"


def test_a_longer_outage_suspends_admission(server):
    one = holding(server)
    with one.cut.cut():
        one.clock.turn(LEASE_S - 1)
        assert not one.lease.renew()
        assert one.admits
        one.clock.turn(1)
        assert not one.admits
        with pytest.raises(UnavailableError, match="has not answered for 60 s"):
            one.lease.require()
    assert not one.admits, "only a renewal shows that nobody has taken over"
    assert one.lease.renew()
    assert one.admits
    one.write("tn_1")


@databases.ON_BOTH
def test_a_partitioned_holder_stops_admitting_before_another_starts(server):
    one, two = holding(server), server("two")
    assert two.lease.try_acquire().holder == "one"
    with one.cut.cut():
        for _ in range(int(LEASE_S) - 1):
            for each in (one, two):
                each.clock.turn(1)
            assert not one.lease.renew()
            assert two.lease.try_acquire().holder == "one"
            assert one.admits
            assert not two.admits
        for each in (one, two):
            each.clock.turn(1)
        assert two.lease.try_acquire() is None
        assert (one.admits, two.admits) == (False, True)
    lost = []
    one.lease.call_when_lost(lambda: lost.append(1))
    with pytest.raises(LeaseLostError):
        one.write("tn_1")
    assert lost == [1], "its first write shows it"
    assert one.lease.renew()
    assert not one.admits
    two.write("tn_2")
    with two.engine.connect() as connection:
        assert connection.scalars(select(Tenant.id)).all() == ["tn_2"]
    one.lease.close()
    assert two.lease.renew()
    assert two.admits, "what the first one does at its end changes nothing"


def test_a_live_holder_keeps_the_lease(server):
    one, two = holding(server), server("two")
    waits = []

    def wait(seconds):
        waits.append(seconds)
        two.clock.turn(seconds)
        if len(waits) == 10:
            assert one.lease.renew()

    with pytest.raises(LeaseTakenError, match=r"in use by another FairServe server \(one\)"):
        two.lease.acquire(wait)
    assert len(waits) == 10


def test_a_waiting_server_takes_over_after_a_full_lease(server):
    holding(server)
    two, began_s = server("two"), 1e4
    two.lease.acquire(two.clock.turn)
    assert two.clock.now_s - began_s == pytest.approx(LEASE_S, abs=1.5)
    assert two.admits
    assert two.lease.previous_alive_at is not None


def test_a_released_or_orphaned_lease_is_taken_immediately(server):
    one = holding(server)
    again = server("one again", guard="one")
    assert again.lease.try_acquire() is None, "who has the guard's lock knows that the holder died"
    assert one.lease.renew()
    assert one.lease.lost.is_set()
    again.lease.close()
    assert server("two").lease.try_acquire() is None


def test_only_one_of_two_waiting_servers_takes_the_lease(server):
    holding(server)
    two, three = server("two"), server("three")
    for each in (two, three):
        each.lease.try_acquire()
        each.clock.turn(LEASE_S)
    assert two.lease.try_acquire() is None
    with pytest.raises(LeaseTakenError, match="in use"):
        three.lease.try_acquire()


@pytest.mark.parametrize("seed", range(4))
def test_two_servers_never_admit_at_once(server, seed):
    """Servers are partitioned, check, renew and end at random, each with its own clock."""
    chance = random.Random(seed)
    servers = [server(f"server {number}") for number in range(3)]
    takeovers = 0
    for _ in range(600):
        seconds = chance.choice((0.3, 1.0, 5.0, 20.0))
        for each in servers:
            each.clock.turn(seconds)
        assert sum(each.admits for each in servers) <= 1
        one = chance.choice(servers)
        if chance.random() < 0.1:
            one.cut.away = not one.cut.away
        elif one.lease.lost.is_set():
            number = servers.index(one)
            servers[number] = server(f"{one.lease.lost} again", one.clock)
        elif one.admits or one.lease._token:
            one.lease.renew()
        elif not one.cut.away:
            try:
                takeovers += one.lease.try_acquire() is None
            except LeaseTakenError:
                one.lease._seen = None
        assert sum(each.admits for each in servers) <= 1
    assert takeovers > 3


# --- the server -----------------------------------------------------------------------------------


@pytest.fixture
def clock():
    return TurnedClock()


@pytest.fixture
def whole(tmp_path, clock):
    def lease(engine):
        return Lease(engine, lease_s=LEASE_S, holder="the server", guard="", clock=clock)

    with WholeServer(tmp_path, lease=lease) as server:
        yield server


def ask(server, key, text="ok", run=None):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 5}
    headers = {"X-Interaction-Id": run} if run else {}
    return server.request("POST", "/v1/chat/completions", key, json=body, headers=headers)


def test_a_server_without_its_database_serves_until_its_lease_ends(whole, clock):
    _, app = whole.new_tenant_and_app("a")
    key = app["api_key"]
    cut = CutDatabase(whole.engine)
    assert ask(whole, key).status_code == 200
    with cut.cut():
        clock.turn(18)
        assert not whole.lease.renew()
        assert ask(whole, key).status_code == 200
        clock.turn(LEASE_S - 18)
        assert not whole.lease.renew()
        rejected = ask(whole, key)
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "lease_over")
        assert rejected.headers["retry-after"] == "5"
        opened = whole.request("POST", "/v1/interactions", key, json={"id": "new"})
        assert (opened.status_code, opened.json()["error"]["code"]) == (503, "lease_over")
        ready = whole.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "no database")
    assert whole.lease.renew()
    assert whole.client.get("/health/readiness").status_code == 200
    assert ask(whole, key).status_code == 200
    assert whole.platform.ledger.flush(20)
    with session_factory(whole.engine)() as session:
        outcomes = session.scalars(select(LedgerCall.outcome)).all()
    assert outcomes == ["completed"] * 3, "calls of the outage are in the ledger"


def test_a_replaced_server_writes_and_admits_nothing(whole, clock):
    _, app = whole.new_tenant_and_app("a")
    assert ask(whole, app["api_key"]).status_code == 200
    assert whole.platform.ledger.flush(20)
    successor = Lease(whole.engine, lease_s=LEASE_S, holder="successor", guard="", clock=clock)
    assert successor.try_acquire() is None
    assert ask(whole, app["api_key"]).status_code == 200, (
        "it does not know yet, and its lease holds"
    )
    made = whole.request("POST", "/admin/tenants", whole.admin_key, json={"name": "late"})
    assert made.status_code == 503
    assert ask(whole, app["api_key"]).json()["error"]["code"] == "lease_over"
    assert not whole.platform.ledger.flush(0.5), "the row stays in the journal"
    with session_factory(whole.engine)() as session:
        assert session.scalar(select(func.count()).where(Tenant.name == "late")) == 0


# --- PostgreSQL -----------------------------------------------------------------------------------


def test_a_second_server_is_rejected_after_a_database_restart(
    new_postgres_url, tmp_path, monkeypatch, capsys
):
    url, worker = new_postgres_url(), ScriptedWorker()
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "x" * 32)
    monkeypatch.setattr(sys, "setswitchinterval", lambda interval_s: None)
    flags = ("--database-url", url, "--database-lease-s", "10", "--worker-urls", worker.url)
    first = ThreadServer(tmp_path / "first", *flags)
    try:
        message = {"role": "user", "content": "ok"}
        body = {"model": "scripted", "messages": [message], "max_tokens": 5}
        assert first.post("/v1/chat/completions", body).status_code == 200
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        second = ["serve", *flags, "--data-dir", str(tmp_path / "second"), "--port", "0"]
        assert cli.main(second) == 1
        assert "in use by another FairServe server" in capsys.readouterr().err
        assert first.post("/v1/chat/completions", body).status_code == 200
        with psycopg.connect(url, autocommit=True) as connection:
            rows = "SELECT count(*) FROM ledger_calls WHERE outcome = 'completed'"
            eventually(lambda: connection.execute(rows).fetchone() == (2,))
            connection.execute("UPDATE server_lease SET token = token + 1")
        eventually(lambda: not first.runs(), "a server that was replaced does not end")
        assert first.stop() == 1
        assert "another server has taken over the database" in capsys.readouterr().err
    finally:
        first.close()
        worker.close()
