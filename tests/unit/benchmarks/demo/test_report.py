"""Test the table, the sentences and the keys of the demo's report, on samples with known figures."""

import json
import re
from dataclasses import replace

from fairserve.benchmarks.demo.entitlement import satisfaction
from fairserve.benchmarks.demo.findings import findings
from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.system_run import figures
from fairserve.benchmarks.demo.table import table
from fairserve.benchmarks.demo.workload import FLOODER, WELL_BEHAVED, PlannedRun
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.metrics import CallSample, RunSample

KEYS = {
    "service_difference", "jain_index", "throughput_tokens_per_s", "ttft_s",
    "interaction_latency_s", "queue_delay_s", "delayed_users_share", "refused_calls",
    "refused_mid_run", "aborted_interactions", "wasted_tokens", "served_users_share",
    "served_interactions_share", "prefix_hit_rate", "makespan_s", "per_client",
}  # fmt: skip


def plan(user, group, number=0):
    return PlannedRun(f"documents-{user}-{number}", "t", "documents", user, group, 0.0, number, 1)


def recorder(*, ttft_s, refused=0, unfinished=0):
    """Return three well-behaved runs of one streamed call each, and the flooder's runs by argument."""
    seen = Recorder()

    def record(user, group, number, outcome, cause, mid_run=False):
        run = plan(user, group, number)
        done = outcome == "completed"
        seen.run_started(run)
        seen.call_started(run)
        call = CallSample(
            client=run.client,
            interaction_id=run.run_id,
            arrival_s=float(number),
            end_s=number + ttft_s + 1,
            outcome=outcome,
            usage=TokenUsage(100, 0, 40, 20) if done else TokenUsage(),
            queue_delay_s=ttft_s / 2 if done else None,
            first_token_s=number + ttft_s if done else None,
            mid_run=mid_run,
            group=group,
        )
        seen.call_ended(run, call)
        wasted = 50 if cause else 0
        seen.run_ended(
            run,
            RunSample(
                run.client, run.run_id, call.arrival_s, call.end_s, not cause, wasted, cause, group
            ),
        )

    for number in range(3):
        record("ada", WELL_BEHAVED, number, "completed", "")
    record("script", FLOODER, 0, "completed", "")
    for number in range(refused):
        record("script", FLOODER, 1 + number, "refused", "throttled", mid_run=True)
    for number in range(unfinished):
        record("script", FLOODER, 50 + number, "cancelled", "cancelled")
    return seen


def summary_of(*, least=0.5, **arguments):
    """Return a summary with the figures that need the runs of all systems."""
    return {**figures(recorder(**arguments)), "satisfied_min": least}


def test_all_keys_exist_in_total_and_for_each_group():
    summary = figures(recorder(ttft_s=1.0, refused=2, unfinished=1))
    assert summary.keys() >= KEYS | {"groups"}
    assert set(summary["groups"]) == {WELL_BEHAVED, FLOODER}
    for group in summary["groups"].values():
        assert group.keys() >= KEYS
    assert json.loads(json.dumps(summary)) == summary
    assert summary["unfinished_interactions"] == 1
    assert summary["aborted_interactions"] == 3
    assert summary["groups"][FLOODER]["wasted_tokens"]["throttled"] == 100


def test_recorder_counts_calls_by_app_and_outcome():
    seen = recorder(ttft_s=1.0, refused=2, unfinished=1)
    assert dict(seen.outcomes) == {
        ("documents", "completed"): 4,
        ("documents", "refused"): 2,
        ("documents", "cancelled"): 1,
    }
    assert (seen.open_runs, seen.open_calls, seen.started_runs) == (0, 0, 7)


def test_the_table_has_the_known_figures():
    text = table(
        {
            "fcfs": summary_of(ttft_s=4.0, unfinished=3),
            "rpm-1": summary_of(ttft_s=0.5, refused=2, least=0.255),
        }
    )
    lines = text.splitlines()
    assert lines[0].split() == ["fcfs", "rpm-1"]
    assert len({len(line) for line in lines[1:]}) == 1, "columns are flush right"
    parts = [re.split(r" {2,}", line.strip()) for line in lines[2:]]
    by_label = {label: cells for label, *cells in parts}
    assert by_label["interactions completed (well-behaved / flooder)"] == ["3 / 1", "3 / 1"]
    assert by_label["aborted by a rejection or an error"] == ["0 / 0", "0 / 2"]
    assert by_label["unfinished when the time was over"] == ["0 / 3", "0 / 0"]
    assert by_label["of them in the middle of a run"] == ["0 / 0", "0 / 2"]
    assert by_label["wasted tokens"] == ["150", "100"]
    assert by_label["TTFT p50 / p99, well-behaved"] == ["4.00 s / 4.00 s", "0.50 s / 0.50 s"]
    assert by_label["queue delay p50 / p99, flooder"] == ["never / never"] * 2
    assert by_label["run p50 / p99, well-behaved"] == ["5.00 s / 5.00 s", "1.50 s / 1.50 s"]
    assert by_label["run p50 / p99, flooder"] == ["never / never"] * 2
    assert by_label["least satisfied user"] == ["50%", "26%"]
    assert by_label["prefix hit rate"] == ["40.0%", "40.0%"]


def test_the_table_of_a_group_without_calls():
    seen = recorder(ttft_s=1.0)
    seen.calls = [call for call in seen.calls if call.group == WELL_BEHAVED]
    text = table({"fcfs": {**figures(seen), "satisfied_min": 1.0}})
    assert "3 / -" in text


def test_findings_state_where_the_default_is_worse():
    systems = {
        "fcfs": summary_of(ttft_s=8.0, unfinished=3),
        "rpm-1": summary_of(ttft_s=0.5, refused=2, least=0.6),
        "fairserve": summary_of(ttft_s=1.0),
    }
    waiting, refusals, worse = findings(systems)
    assert "1.00 s (p99)" in waiting
    assert "8.00 s under fcfs and 0.50 s under rpm-1" in waiting
    assert "fairserve rejected 0 calls" in refusals
    assert "rpm-1 cut 2 calls of active runs and so wasted 100 tokens" in refusals
    assert "than rpm-1 in" in worse
    assert "TTFT p99 of the well-behaved (1 s against 0.50 s)" in worse
    assert "fcfs" not in worse.partition("than rpm-1")[0]
    assert "queue delay p99 of the well-behaved (0.50 s against 0.25 s)" in worse
    assert "least satisfied user (0.50 against 0.60)" in worse


def test_findings_do_not_call_a_rejecting_system_fast():
    """A rejected call waits infinitely, and so does the p99 if more than 1 % are rejected."""
    refusing = recorder(ttft_s=0.5)
    refused = replace(refusing.calls[0], outcome="refused", first_token_s=None)
    refusing.calls.append(refused)
    systems = {
        "rpm-1": {**figures(refusing), "satisfied_min": 0.5},
        "fairserve": summary_of(ttft_s=1.0),
    }
    waiting, _, worse = findings(systems)
    assert "without end under rpm-1" in waiting
    assert "TTFT p50 of the well-behaved" in worse
    assert "TTFT p99 of the well-behaved" not in worse
    worse = findings({"fairserve": systems["rpm-1"], "fcfs": systems["fairserve"]})[-1]
    assert "TTFT p99 of the well-behaved (without end against 1 s)" in worse


def test_unstreamed_answers_have_no_first_token_wait():
    seen = recorder(ttft_s=1.0)
    seen.calls = [replace(call, first_token_s=None) for call in seen.calls[:1]] + seen.calls[1:]
    waits = figures(seen)["groups"][WELL_BEHAVED]["all_waits"]
    assert waits["ttft_s"] == {"p50": 1.0, "p99": 1.0}


def test_a_user_is_satisfied_by_its_entitlement():
    """Alone a user would get all that it begins; the flooder is entitled to the remainder."""
    plans = [plan("ada", WELL_BEHAVED, number) for number in range(3)]
    plans += [plan("script", FLOODER, number) for number in range(50)]
    starved = recorder(ttft_s=1.0)
    lost = {plans[1].run_id, plans[2].run_id}
    starved.calls = [call for call in starved.calls if call.interaction_id not in lost]
    starved.runs = [run for run in starved.runs if run.interaction_id not in lost]
    shares = satisfaction(plans, {"fcfs": starved, "fairserve": recorder(ttft_s=1.0)})
    assert shares["fairserve"] == {"t/ada": 1.0, "t/script": 0.5}
    assert shares["fcfs"] == {"t/ada": 0.5, "t/script": 0.5}
    few = satisfaction(plans[:1] + plans[3:], {"fcfs": starved, "fairserve": starved})
    assert few["fcfs"] == {"t/ada": 1.0, "t/script": 1.0}, "it asks for one run and gets it"


def test_findings_state_if_nothing_was_worse():
    same = summary_of(ttft_s=1.0)
    sentences = findings({"fs-wi": same, "fairserve": same})
    assert sentences[-1].startswith("In no figure")
