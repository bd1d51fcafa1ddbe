"""Recorded traces from outside the repository; tests that need them skip if they are absent."""

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from fairserve.benchmarks.traces.reading import read_trace

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"


def shared_trace(name):
    """Return the path of a recorded trace in FAIRSERVE_TRACES or the folder beside the repository.

    Skip the test if there is no such folder; fail if a named folder lacks the file.
    """
    named = os.environ.get("FAIRSERVE_TRACES")
    folder = Path(named) if named else BESIDE
    if not named and not folder.is_dir():
        pytest.skip("no recorded traces: set FAIRSERVE_TRACES to their folder")
    path = folder / name
    assert path.is_file(), f"{path} is missing"
    return path


RECORDED_GRAPHS = (
    "simple_chain",
    "simple_chain_alt",
    "parallel_requests",
    "fan_in_dependencies",
    "customer_support_escalation",
    "multi_agent_research",
    "code_review_workflow",
    "software_architecture_review",
    "prefix_sharing_example",
)
"""All OpenTelemetry traces of agent programs."""


def recorded_graph(name):
    """Return the interactions of a file with the begin and duration of their calls, in seconds."""
    path = shared_trace(f"fixtures/otel_{name}.json")
    times = {}
    for span in json.loads(path.read_text())["spans"]:
        begin, end = (datetime.fromisoformat(span[key]) for key in ("start_time", "end_time"))
        times[span["span_id"]] = (begin, (end - begin).total_seconds())
    for interaction in read_trace(path).interactions:
        first = min(times[call.call_id][0] for call in interaction.calls)
        yield (
            interaction,
            {
                call.call_id: (
                    (times[call.call_id][0] - first).total_seconds(),
                    times[call.call_id][1],
                )
                for call in interaction.calls
            },
        )
