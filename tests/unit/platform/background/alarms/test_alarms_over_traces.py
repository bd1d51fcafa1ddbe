"""Simulate the alarm rules over recorded traffic, in virtual time: an hour of it raises no alarm."""

import heapq
import math
from collections import deque

import pytest
from alarm_world import AlarmWorld
from shared_traces import shared_trace

from fairserve.benchmarks.traces import assignment
from fairserve.benchmarks.traces.reading import read_trace
from fairserve.benchmarks.traces.servegen import ServeGenOptions

HOUR_S = 3600.0
TOKEN_S = 0.02
"""Seconds of a slot for an output token."""
CLIENTS, TENANTS = 1_000, 100


class RecordedWorld(AlarmWorld):
    """Replays the calls of a trace at their times; each takes a slot for as long as its output.

    ``slots`` are such that ``used`` of them are in use on average.
    """

    def __init__(self, trace, used):
        calls = [(run, call) for run in trace.interactions for call in run.calls]
        work_s = TOKEN_S * sum(call.output_tokens for _, call in calls)
        super().__init__(slots=2 * math.ceil(work_s / HOUR_S / used / 2))
        self._due, self._lengths_s = {}, {}
        for run, call in sorted(calls, key=lambda each: each[0].arrival_s):
            owner = (run.tenant, f"app-{run.tenant}", run.user)
            self._due.setdefault(owner, deque()).append(run.arrival_s)
            self._lengths_s[owner, run.arrival_s] = TOKEN_S * call.output_tokens
        for tenant, _, user in self._due:
            self.client(tenant, user, 1.0)

    def _next(self, owner):
        if self._due[owner]:
            heapq.heappush(self._arrivals, (self._due[owner].popleft(), next(self._numbers), owner))

    def _end(self, live):
        end_s = live.submitted_s + live.queue_s + self._lengths_s[live.owner, live.submitted_s]
        if end_s > self.now_s:
            heapq.heappush(self._running, (end_s, next(self._numbers), live))
        else:
            super()._end(live)


@pytest.mark.parametrize(
    "name", ["azure_llm_2023_conv.csv.gz", "mooncake_conversation_trace.jsonl.gz"]
)
def test_an_hour_of_a_thousand_recorded_clients_has_no_alarm(name):
    trace = read_trace(shared_trace(name))
    trace = assignment.assign_users(trace, users=CLIENTS, skew=0.8, seed=3)
    trace = assignment.assign_tenants(trace, tenants=TENANTS, seed=3)
    assert RecordedWorld(trace, 0.7).run(HOUR_S) == []


def test_an_hour_of_few_clients_with_their_own_bursts_has_no_alarm():
    noon = ServeGenOptions(from_s=12 * HOUR_S, to_s=13 * HOUR_S)
    trace = read_trace(shared_trace("servegen_mm_image_rates.csv.gz"), servegen=noon)
    assert RecordedWorld(trace, 0.5).run(HOUR_S) == []
