"""The figures of the sessions whose contexts exceed the caches, on calls with known ones."""

import pytest

from fairserve.benchmarks.demo.memory import (
    OURS,
    SYSTEMS,
    memory_figures,
    memory_finding,
    memory_table,
)
from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.workload import sessions
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.metrics import CallSample


def recorder(*calls):
    """Return a recorder of calls: run, arrival, first token or None, end."""
    seen = Recorder()
    for run, arrival_s, first_token_s, end_s in calls:
        done = first_token_s is not None
        seen.calls.append(
            CallSample(
                client="workshop/jo",
                interaction_id=run,
                arrival_s=arrival_s,
                end_s=end_s,
                outcome="completed" if done else "cancelled",
                usage=TokenUsage(90, 0, 45, 10) if done else TokenUsage(),
                queue_delay_s=0.0,
                first_token_s=first_token_s,
            )
        )
    return seen


def test_a_call_without_a_first_token_has_waited_until_the_end():
    """First calls of sessions wait to begin, which is another wait."""
    calls = (
        ("A", 0.0, 5.0, 6.0),
        ("A", 6.0, 6.5, 7.0),
        ("A", 8.0, None, 10.0),
        ("B", 1.0, None, 10.0),
    )
    found = memory_figures(recorder(*calls), 10.0)
    assert found.begun_wait_p99_s == 2.0
    assert found.begun_runs == 1
    assert found.tokens_per_s == 20.0
    assert found.hit_rate == 0.5


def test_nothing_was_served():
    found = memory_figures(recorder(("A", 0.0, None, 10.0)), 10.0)
    assert found.tokens_per_s == found.begun_runs == found.hit_rate == 0


def test_the_sentence_names_the_ratios():
    slow = memory_figures(recorder(("A", 0.0, 1.0, 2.0), ("A", 2.0, 9.0, 10.0)), 10.0)
    fast = memory_figures(recorder(*[("A", n, n + 0.5, n + 1.0) for n in range(6)]), 10.0)
    systems = {name: fast if name == OURS else slow for name in SYSTEMS}
    assert memory_finding(systems).count("3.0 times the tokens/s of") == len(SYSTEMS) - 1
    assert "7.00 s" in memory_table(systems)
    assert "0.50 s" in memory_table(systems)


@pytest.mark.parametrize("part", range(len(SYSTEMS)))
def test_every_user_has_as_many_sessions(part):
    users = [run.user for run in sessions(0, part)]
    assert len({users.count(user) for user in users}) == 1
