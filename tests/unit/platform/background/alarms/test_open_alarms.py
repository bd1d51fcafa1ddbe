"""Test the alarms in memory: their bounds, and what is resolved when."""

from itertools import count

from fairserve.platform.background.alarms import open_alarms
from fairserve.platform.background.alarms.alarm import AlarmFinding, AlarmKey
from fairserve.platform.background.alarms.open_alarms import CLEAR_S, OpenAlarms


def alarms():
    ids = count()
    return OpenAlarms(lambda: f"al_{next(ids)}")


def found(*owners):
    return [AlarmFinding(AlarmKey("calls_failing", *owner), "bad") for owner in owners]


def test_a_tenant_opens_a_bounded_number(monkeypatch):
    monkeypatch.setattr(open_alarms, "MAX_OPEN", 5)
    monkeypatch.setattr(open_alarms, "MAX_OF_TENANT", 3)
    kept = alarms()
    kept.update(found(*(("greedy", f"a{n}") for n in range(9))), 0.0)
    kept.update(
        found(*(("greedy", f"a{n}") for n in range(9)), ("other", "b"), ("third", "c")), 1.0
    )
    assert sorted(each.key.tenant for each in kept) == ["greedy"] * 3 + ["other", "third"]
    kept.update(found(("fourth", "d")), 2.0)
    assert len(kept) == 5
    kept.update(found(("fourth", "d")), 2.0 + CLEAR_S)
    assert [each.key.tenant for each in kept] == ["fourth"], "the resolved ones leave room"


def test_alarms_of_tenants_leave_room_for_those_about_the_server(monkeypatch):
    monkeypatch.setattr(open_alarms, "MAX_OPEN", 3)
    kept = alarms()
    kept.update(found(*((f"t{n}", "a") for n in range(9))), 0.0)
    assert len(kept) == 3
    server = [AlarmFinding(AlarmKey("no_worker", subject=f"m{n}"), "bad") for n in range(2)]
    kept.update(server, 1.0)
    assert [each.key.kind for each in kept].count("no_worker") == 2


def test_an_alarm_is_resolved_once_it_was_not_found_for_a_while():
    kept = alarms()
    assert kept.update(found(("t", "a")), 0.0) == []
    (alarm,) = kept
    assert not alarm.over
    assert kept.update([], CLEAR_S - 1) == []
    assert (alarm.over, alarm.state) == (True, "open")
    past = [AlarmFinding(alarm.key, "bad", dict(alarm.facts))]  # as the rules copy them
    assert kept.update(past, CLEAR_S) == []
    assert not alarm.over, "it is found again"
    assert kept.update([], 2 * CLEAR_S - 1) == []
    assert kept.update([], 2 * CLEAR_S) == [alarm]
    assert (alarm.state, alarm.resolved_at, alarm.opened_at) == ("resolved", 2 * CLEAR_S, 0.0)
    kept.update(found(("t", "a")), 3 * CLEAR_S)
    assert [each.alarm_id for each in kept] == ["al_1"], "another alarm"
