"""Test the watch of the database: what is no answer, and connections that open while others end."""

import sqlite3
import sys
import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import event

from fairserve.platform.db import watch as module
from fairserve.platform.db.watch import DatabaseWatch

ROUNDS = 10_000


class Connection:
    def fileno(self):
        raise OSError


@pytest.fixture
def switching_often():
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def test_a_probe_that_fails_outside_of_sqlalchemy_is_no_answer(monkeypatch):
    probed = threading.Event()

    def connect():
        probed.set()
        raise OSError("too many open files")

    monkeypatch.setattr(module, "PROBE_S", 0.001)
    dialect = SimpleNamespace(name="sqlite")
    engine = SimpleNamespace(dialect=dialect, connect=connect, dispose=lambda: None)
    watch = DatabaseWatch(engine, engine)
    watch.start()
    assert probed.wait(90)
    watch.close()
    assert watch.away_since is not None


def test_connections_may_open_while_all_are_ended(monkeypatch, switching_often):
    opened = []
    monkeypatch.setattr(event, "listen", lambda pool, name, listener: opened.append(listener))
    dialect = SimpleNamespace(name="postgresql", loaded_dbapi=sqlite3)
    engine = SimpleNamespace(dialect=dialect, pool=None)
    watch = DatabaseWatch(engine, engine)
    kept = [Connection() for _ in range(5)]
    for each in kept:
        opened[0](each, None)
    failures = []

    def end_all():
        try:
            for _ in range(ROUNDS):
                watch._end_connections()
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=end_all)
    thread.start()
    while thread.is_alive():
        opened[0](Connection(), None)
    thread.join()
    assert not failures
