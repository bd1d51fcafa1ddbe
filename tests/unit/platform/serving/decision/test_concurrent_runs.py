"""A thousand concurrent runs of one app, alike in whatever misleads, are never taken for one another."""

import concurrent_runs as runs
import pytest

COMPLETE = (
    runs.equal_prompts_and_answers_in_own_traces,
    runs.equal_prompts_and_own_answers,
    runs.one_trace_over_all_runs,
    runs.one_session_id_of_many_users,
    runs.own_session_id_and_new_prompts,
    runs.one_prompt_cache_key,
    runs.parallel_branches,
    runs.forks,
    runs.equal_examples_in_the_prompt,
    runs.header_of_another_tool,
)
"""Kinds of runs of which every call is recognised."""


async def test_a_thousand_concurrent_runs_have_no_false_merge():
    tallies = await runs.Traffic().drive(runs.KINDS, 1000)
    assert sum(tally.runs for tally in tallies.values()) == 1000
    assert {name for name, tally in tallies.items() if tally.false_merges} == set()
    for kind in COMPLETE:
        tally = tallies[kind.__name__.replace("_", " ")]
        assert tally.joined == tally.joinable > 0, kind.__name__
    joined = sum(tally.joined for tally in tallies.values())
    assert joined >= 0.7 * sum(tally.joinable for tally in tallies.values())


@pytest.mark.parametrize("rule", ["traceparent", "metadata", "continued_conversation", "aliases"])
async def test_a_rule_that_is_off_joins_nothing(rule):
    """Every call of the runs that only this rule recognises is a run of its own."""
    kinds = {
        "traceparent": runs.equal_prompts_and_answers_in_own_traces,
        "metadata": runs.own_session_id_and_new_prompts,
        "continued_conversation": runs.forks,
        "aliases": runs.header_of_another_tool,
    }
    rules = tuple(each for each in runs.DEFAULT_RUN_RULES if each != rule)
    (tally,) = (await runs.Traffic(rules).drive([kinds[rule]], 40)).values()
    assert (tally.joined, tally.false_merges) == (0, 0)
