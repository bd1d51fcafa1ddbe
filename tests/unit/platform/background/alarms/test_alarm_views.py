"""Test what a tenant reads of the cause of an alarm about its calls."""

from fairserve.platform.background.alarms.alarm import Alarm, AlarmKey
from fairserve.platform.background.alarms.schemas import alarm_out


def waiting_since(action):
    """Return an alarm about waits, with a change of this kind before it."""
    change = {
        "at": 40.0,
        "actor": "anna",
        "operator": True,
        "action": action,
        "target": "version 3",
        "differences": [{"field": "parameters.user_rpm", "before": 60, "after": 6}],
    }
    key = AlarmKey("calls_waiting", "tn", "app")
    facts = {"wait_s": 12.0, "usual_wait_s": 0.1, "queued": 3}
    return Alarm("al", key, "bad", 100.0, 100.0, facts, cause={"change": change})


def test_a_tenant_reads_that_the_throttling_changed_and_not_its_parameters():
    alarm = waiting_since("throttling.change")
    own = alarm_out(alarm, "tn").change
    assert (own.text, own.differences) == ("throttling changed by an operator, 60 s before", [])
    for_operators = alarm_out(alarm).change
    assert for_operators.text == "parameters.user_rpm 60 → 6 by anna, 60 s before"
    assert len(for_operators.differences) == 1
    assert alarm_out(waiting_since("tenant.change"), "tn").change.differences, "its own limits"
