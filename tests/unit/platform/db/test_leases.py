"""Test leases on rows, with a table of the test's own."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import String, select
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import Base
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.leases import LeasedTable, RowLeaseLostError, renewing

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def table():
    class Work(Base):
        __tablename__ = "test_leases_work"

        id: Mapped[str] = mapped_column(String(8), primary_key=True)
        state: Mapped[str] = mapped_column(String(16))
        tries: Mapped[int]
        due_at: Mapped[datetime]
        lease_until: Mapped[datetime | None]

    yield LeasedTable(Work, ("open",), attempts="tries", fence=("tries",), due_at="due_at")
    Base.metadata.remove(Work.__table__)
    Base.registry._dispose_cls(Work)


@pytest.fixture
def sessions(table, tmp_path):
    engine = connect(f"sqlite:///{tmp_path / 'work.sqlite'}")
    table.model.__table__.create(engine)
    sessions = session_factory(engine)
    with sessions.begin() as session:
        session.add(table.model(id="a", state="open", tries=0, due_at=BEGIN))
        session.add(table.model(id="done", state="closed", tries=1, due_at=BEGIN))
        session.add(table.model(id="late", state="open", tries=0, due_at=BEGIN + MINUTE * 9))
    yield sessions
    engine.dispose()


def claim(table, sessions, now):
    """Claim all due rows and return their leases."""
    with sessions.begin() as session:
        rows = session.scalars(table.due(select(table.model), now)).all()
        for row in rows:
            table.take(row, now, MINUTE)
    return [table.lease(row) for row in rows]


def row(table, sessions, key="a"):
    with sessions() as session:
        return session.get(table.model, key)


def test_a_row_is_claimed_once_until_its_lease_expires(table, sessions):
    (lease,) = claim(table, sessions, BEGIN)
    assert lease.identity == {"id": "a", "tries": 1}
    assert claim(table, sessions, BEGIN + MINUTE) == []
    (again,) = claim(table, sessions, BEGIN + MINUTE + timedelta(milliseconds=1))
    assert again.identity == {"id": "a", "tries": 2}


def test_a_row_is_not_claimed_before_its_time(table, sessions):
    assert claim(table, sessions, BEGIN - timedelta(seconds=1)) == []
    found = claim(table, sessions, BEGIN + 9 * MINUTE)
    assert {lease.identity["id"] for lease in found} == {"a", "late"}


def test_times_of_a_clock_that_went_back_are_void(table, sessions):
    ahead = BEGIN + timedelta(days=3)
    assert len(claim(table, sessions, ahead)) == 2
    assert {lease.identity["id"] for lease in claim(table, sessions, BEGIN)} == {"a"}
    with sessions.begin() as session:
        session.get(table.model, "late").lease_until = None
        session.get(table.model, "late").due_at = ahead
    found = claim(table, sessions, BEGIN + timedelta(seconds=30))
    assert {lease.identity["id"] for lease in found} == {"late"}


def test_the_holder_renews_and_releases_its_lease(table, sessions):
    (lease,) = claim(table, sessions, BEGIN)
    with sessions.begin() as session:
        lease.renew(session, BEGIN + 5 * MINUTE)
        assert lease.locked_row(session).lease_until == BEGIN + 5 * MINUTE
    with sessions.begin() as session:
        assert lease.end(session, due_at=BEGIN + 3 * MINUTE)
    assert row(table, sessions).lease_until is None
    assert claim(table, sessions, BEGIN + 2 * MINUTE) == []
    assert len(claim(table, sessions, BEGIN + 3 * MINUTE)) == 1


def test_a_stale_holder_cannot_change_the_row(table, sessions):
    (stale,) = claim(table, sessions, BEGIN)
    (holder,) = claim(table, sessions, BEGIN + 2 * MINUTE)
    with sessions.begin() as session:
        assert stale.locked_row(session) is None
        assert not stale.end(session, state="closed")
        with pytest.raises(RowLeaseLostError):
            stale.renew(session, BEGIN + 9 * MINUTE)
    found = row(table, sessions)
    assert (found.state, found.lease_until) == ("open", BEGIN + 3 * MINUTE)
    with sessions.begin() as session:
        assert holder.end(session, state="closed")


def test_many_leases_are_renewed_at_once_and_lost_ones_returned(table, sessions):
    (lost,) = claim(table, sessions, BEGIN)
    held = claim(table, sessions, BEGIN + 9 * MINUTE)
    assert len(held) == 2
    for minutes, until in ((9.1, 10), (9.5, 10.5)):
        now = BEGIN + minutes * MINUTE
        with sessions.begin() as session:
            assert table.renew_all(session, [*held, lost], now, MINUTE) == [lost]
        found = {row(table, sessions, key).lease_until for key in ("a", "late")}
        assert found == {BEGIN + until * MINUTE}
    assert row(table, sessions, "done").lease_until is None


@pytest.mark.parametrize("after_reading", [False, True])
def test_a_renewal_does_not_undo_the_end_of_a_lease(table, sessions, after_reading, monkeypatch):
    (lease,) = claim(table, sessions, BEGIN)
    lock = LeasedTable.locked

    def end_first(self, session, keys):
        lease.end(session)
        return lock(self, session, keys)

    with sessions.begin() as session:
        if after_reading:
            monkeypatch.setattr(LeasedTable, "locked", end_first)
        else:
            lease.end(session)
        assert table.renew_all(session, [lease], BEGIN + MINUTE, MINUTE) == []
    assert row(table, sessions).lease_until is None


def test_leases_of_ended_processes_are_void(table, sessions):
    claim(table, sessions, BEGIN)
    with sessions.begin() as session:
        session.get(table.model, "done").lease_until = BEGIN + MINUTE
    with sessions.begin() as session:
        table.void(session)
    assert len(claim(table, sessions, BEGIN)) == 1
    assert row(table, sessions, "done").lease_until, "it has ended"


def test_a_background_thread_renews_until_the_lease_is_lost(table, sessions):
    renewed = []
    lost = threading.Event()

    def renew(session):
        renewed.append(session)
        if len(renewed) == 3:
            lost.set()
            raise RowLeaseLostError

    with renewing(sessions, renew, every_s=0.001, name="lease of a"):
        assert lost.wait(60)
    assert len(renewed) == 3
    assert not any(thread.name == "lease of a" for thread in threading.enumerate())
