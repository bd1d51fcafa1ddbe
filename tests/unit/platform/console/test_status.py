"""The status line names the worst cause, and since when there is one, and the viewer's open alarms."""

import itertools

import pytest

from fairserve.platform.background.alarms.alarm import Alarm, AlarmKey
from fairserve.platform.console import status as status_module
from fairserve.platform.console.status import ProcessState, StatusLine


def line(state=None, at=0.0):
    """Return a status line with its state, alarms and clock, which a test changes."""
    world = {"state": state or ProcessState(), "alarms": [], "at": at}

    def alarms(tenant):
        return [each for each in world["alarms"] if tenant is None or tenant in each.tenants]

    return StatusLine(lambda: world["state"], alarms, lambda: world["at"]), world


def alarm(tenant="t", opened_at=10.0, **values):
    key = AlarmKey("calls_rejected", tenant, f"app of {tenant}")
    return Alarm("al_1", key, "bad", opened_at, opened_at, **values)


@pytest.mark.parametrize(
    ("state", "level", "why"),
    [
        (ProcessState(), "healthy", []),
        (ProcessState(draining=True, rejection="x"), "down", ["draining"]),
        (
            ProcessState(rejection="no control process speaks"),
            "down",
            ["no control process speaks"],
        ),
        (ProcessState(database_away_since=1.0, ledger_waits_since=2.0), "degraded", ["database"]),
        (ProcessState(ledger_waits_since=2.0), "degraded", ["no rows"]),
        (
            ProcessState(database_away_since=1.0, models=0),
            "down",
            ["No worker is ready", "database"],
        ),
        (ProcessState(models=1, models_without_worker=["a"]), "down", ["No worker is ready"]),
        (ProcessState(models=2, models_without_worker=["a"]), "degraded", ["No worker serves a."]),
        (
            ProcessState(database_away_since=1.0, rejection="x"),
            "down",
            ["rejected: x.", "database"],
        ),
    ],
)
def test_the_worst_cause_is_named_first(state, level, why):
    found = line(state)[0].now()
    assert found.level == level
    assert len(found.causes) == len(why)
    for cause, text in zip(found.causes, why, strict=True):
        assert text in cause.why


def test_a_cause_begins_when_it_is_first_seen_unless_its_time_is_known():
    status, world = line(at=100.0)
    world |= {"state": ProcessState(draining=True), "at": 110.0}
    status.sampled(None)
    world["at"] = 120.0
    assert status.now().since == 110.0
    world["state"] = ProcessState(database_away_since=90.0)
    assert status.now().since == 90.0
    world |= {"state": ProcessState(), "at": 130.0}
    assert (status.now().level, status.now().since) == ("healthy", 130.0)
    assert status.now().started == 100.0


def seen(status, reader):
    found = status.of(reader)
    return found.level, found.since, len(found.alarms), found.acknowledged


def test_the_line_is_not_healthy_beside_an_open_alarm_of_its_reader():
    status, world = line(at=5.0)
    world |= {"alarms": [alarm(opened_at=12.0), alarm("other", opened_at=10.0)], "at": 20.0}
    assert seen(status, None) == ("alarmed", 10.0, 2, 0)
    assert seen(status, "t") == ("alarmed", 12.0, 1, 0)
    assert seen(status, "third") == ("healthy", 5.0, 0, 0)
    world["state"] = ProcessState(ledger_waits_since=15.0)
    assert seen(status, "t") == ("degraded", 15.0, 1, 0), "the server's state is worse"


def test_an_alarm_that_is_acknowledged_or_over_is_known():
    status, world = line()
    status.sampled(None)
    world |= {"alarms": [alarm(acknowledged_at=21.0)], "at": 30.0}
    assert seen(status, "t") == ("healthy", 0.0, 0, 1)
    world["alarms"] = [alarm(facts={"ended": True})]
    assert seen(status, "t") == ("healthy", 0.0, 0, 0)


def test_healthy_begins_when_the_last_open_alarm_of_the_reader_ends_though_nobody_looked():
    status, world = line()
    world |= {"alarms": [alarm()], "at": 30.0}
    status.sampled(None)
    world |= {"alarms": [], "at": 40.0}
    for reader, since in ((None, 30.0), ("t", 30.0), ("other", 0.0)):
        assert status.of(reader).since == since


def test_a_forgotten_tenant_is_healthy_since_a_later_time(monkeypatch):
    monkeypatch.setattr(status_module, "MAX_READERS", 2)
    status, world = line()
    for at, tenant in zip(itertools.count(1.0), "abc"):
        world |= {"alarms": [alarm(tenant)], "at": at}
        status.of(tenant)
    world |= {"alarms": [], "at": 9.0}
    assert [status.of(each).since for each in "abcd"] == [1.0, 2.0, 3.0, 1.0]
