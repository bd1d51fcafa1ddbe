"""Records of rejected calls, with the context of the decision."""

from datetime import UTC, datetime

from call_records import call_record

from fairserve.platform.control.call_state import refusal_fields
from fairserve.scheduling.events import Refuse
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.base import Decision

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STATE = RejectionContext(
    system="fairserve",
    overloaded=True,
    demand_tokens=2360,
    capacity_tokens=1000,
    high_watermark=2.0,
    low_watermark=1.2,
    queued_calls=7,
    call_tokens=120,
    run_calls=0,
    run_tokens=0,
    expected_calls=4.0,
    expected_tokens=1200.0,
    immunity_factor=4.0,
    under_way=False,
    immune=False,
)
DECISION = Decision(False, "overloaded_user_limit", "user", 20, 60.0, 21, 11.2)


def rejected_call(call_id, decision=DECISION, state=STATE, *, mid_run=False, at_s=0.0, **more):
    values = {
        "tenant": "tn_a",
        "app": "app_a",
        "user": "u",
        "model": "small",
        "served_model": "small-v2",
        "interaction_id": "run",
        "agent": "planner",
        "stage": 1,
    } | more
    at = START.timestamp() + at_s
    return call_record(
        call_id,
        outcome="refused",
        accepted_at=at,
        **values,
        **refusal_fields(Refuse("app/run/c", decision, mid_run, state)),
    )
