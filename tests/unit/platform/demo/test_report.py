"""Table, sentences and keys, from samples whose figures are known."""

import json
import re

from fairserve.interactions.call import TokenUsage
from fairserve.platform.demo.findings import findings
from fairserve.platform.demo.recorder import Recorder
from fairserve.platform.demo.system_run import figures
from fairserve.platform.demo.table import table
from fairserve.platform.demo.workload import FLOODER, WELL_BEHAVED, PlannedRun
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
    """Three well-behaved runs of one streamed call each, and a flooder's as said."""
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


def test_all_keys_are_there_for_all_and_for_each_group():
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


def test_table():
    text = table(
        {
            "fcfs": figures(recorder(ttft_s=4.0, unfinished=3)),
            "rpm-1": figures(recorder(ttft_s=0.5, refused=2)),
        }
    )
    lines = text.splitlines()
    assert lines[0].split() == ["fcfs", "rpm-1"]
    assert len({len(line) for line in lines[1:]}) == 1, "columns are flush right"
    parts = [re.split(r" {2,}", line.strip()) for line in lines[2:]]
    by_label = {label: cells for label, *cells in parts}
    assert by_label["interactions completed (well-behaved / flooder)"] == ["3 / 1", "3 / 1"]
    assert by_label["aborted by a refusal or an error"] == ["0 / 0", "0 / 2"]
    assert by_label["unfinished when the time was over"] == ["0 / 3", "0 / 0"]
    assert by_label["of them in the middle of a run"] == ["0 / 0", "0 / 2"]
    assert by_label["wasted tokens"] == ["150", "100"]
    assert by_label["TTFT p50 / p99, well-behaved"] == ["4.00 / 4.00 s", "0.50 / 0.50 s"]
    assert by_label["queue delay p50 / p99, flooder"] == [
        "2.00 / 2.00 s",
        "0.25 / 0.25 s",
    ]
    assert by_label["prefix hit rate"] == ["40.0%", "40.0%"]


def test_table_of_a_group_that_made_no_call():
    seen = recorder(ttft_s=1.0)
    seen.calls = [call for call in seen.calls if call.group == WELL_BEHAVED]
    text = table({"fcfs": figures(seen)})
    assert "3 / -" in text


def test_findings_say_where_the_default_is_worse():
    systems = {
        "fcfs": figures(recorder(ttft_s=8.0, unfinished=3)),
        "rpm-1": figures(recorder(ttft_s=0.5, refused=2)),
        "fairserve": figures(recorder(ttft_s=1.0)),
    }
    waiting, refusals, worse = findings(systems)
    assert "1.00 s (p99)" in waiting
    assert "8.00 s under fcfs and 0.50 s under rpm-1" in waiting
    assert "fairserve refused 0 calls" in refusals
    assert "rpm-1 cut 2 calls out of runs under way and so wasted 100 tokens" in refusals
    assert "than rpm-1 in" in worse
    assert "TTFT p99 of the well-behaved (1 s against 0.50 s)" in worse
    assert "fcfs" not in worse.partition("than rpm-1")[0]
    assert "queue delay p99 of the well-behaved (0.50 s against 0.25 s)" in worse


def test_findings_say_so_if_nothing_was_worse():
    same = figures(recorder(ttft_s=1.0))
    sentences = findings({"fs-wi": same, "fairserve": same})
    assert sentences[-1].startswith("In no figure")
