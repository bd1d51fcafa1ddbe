"""Handmade ended calls, with their recording and its export."""

from array import array

from fairserve.platform.reporting.traffic.export import export
from fairserve.platform.reporting.traffic.lines import EndedCall
from fairserve.platform.reporting.traffic.segments import (
    SegmentWriter,
    read_recording,
)

BLOCK = 4
OPENED_AT = 1_000_000.0


def ended(call="c1", begin_s=0.0, end_s=1.0, *, run="run", deps=(), stage=1, keys=(), **more):
    """Return an ended call; seconds count from the beginning of the run."""
    values = {
        "run": f"app/{run}",
        "opened_at": OPENED_AT,
        "call": f"app/{run}/{call}",
        "row": f"row-{run}-{call}",
        "deps": tuple(f"app/{run}/{dep}" for dep in deps),
        "stage": stage,
        "tenant": "tn_1",
        "app": "app_1",
        "user": "alice",
        "agent": None,
        "begin_at": OPENED_AT + begin_s,
        "end_at": OPENED_AT + end_s,
        "prompt_tokens": 40,
        "system_tokens": 10,
        "output_tokens": 7,
        "samples": 1,
        "keys": array("Q", keys),
    }
    return EndedCall(**{**values, **more})


def writer(folder, *, max_bytes=1 << 20, retention_s=1e9, wall=lambda: OPENED_AT):
    return SegmentWriter(
        folder, max_bytes=max_bytes, retention_s=retention_s, block_tokens=BLOCK, wall=wall
    )


def exported(folder, *calls, since_at=0.0):
    """Write calls, read them back, and rebuild the trace."""
    writer(folder).write(list(calls))
    found, block_tokens, damaged = read_recording(folder, since_at)
    assert (block_tokens, damaged) == (BLOCK, 0)
    return export(found, block_tokens, since_at)


def graph(result):
    """Return the one interaction as call -> dependencies and gap."""
    [interaction] = result.trace.interactions
    return {call.call_id: (list(call.deps), call.gap_s) for call in interaction.calls}
