"""Records of calls for tests, each with only the relevant fields."""

from fairserve.platform.control.messages import CallRecord


def call_record(call_id="c", **more):
    """Return a call that completed when it was accepted, except for the fields in ``more``."""
    values = {
        "tenant": "t",
        "app": "a",
        "user": "u",
        "model": "m",
        "interaction_id": "r",
        "stage": 1,
        "agent": None,
        "outcome": "completed",
        "accepted_at": 1.0,
    } | more
    return CallRecord(call_id=call_id, **({"ended_at": values["accepted_at"]} | values))
