"""The schedule and the texts of the demo are reproducible and match their descriptions."""

import random

import pytest

from fairserve.benchmarks.demo import documents
from fairserve.benchmarks.demo.agents import (
    coding_agent,
    question_answering,
    report_team,
    tree_of_thoughts,
)
from fairserve.benchmarks.demo.catalogue import APPS
from fairserve.benchmarks.demo.workload import (
    CALLS_PER_MINUTE,
    CODING,
    FLOOD_BEGINS,
    FLOOD_USER,
    FLOODER,
    LOADS,
    WELL_BEHAVED,
    schedule,
    sessions,
)


def test_same_seed_same_schedule():
    random.seed(1)
    first = schedule(3, 40)
    random.seed(2)
    assert schedule(3, 40) == first
    assert schedule(4, 40) != first


def test_a_longer_schedule_extends_a_shorter_one():
    """The well-behaved runs of the first seconds do not depend on the duration of the demo."""
    short = [run for run in schedule(0, 20) if run.group == WELL_BEHAVED]
    long = [run for run in schedule(0, 60) if run.group == WELL_BEHAVED]
    assert long[: len(short)] == short
    assert len(long) > len(short)


def test_runs_are_in_order_and_within_the_time():
    runs = schedule(0, 50)
    starts = [run.start_s for run in runs]
    assert starts == sorted(starts)
    assert all(0 <= start_s < 50 for start_s in starts)
    assert len({run.run_id for run in runs}) == len(runs)


def test_one_user_floods_and_the_others_are_under_the_limit_on_average():
    mean = {load.app: 60 / load.period_s * load.calls_per_run for load in LOADS}
    assert max(mean.values()) < CALLS_PER_MINUTE
    runs = schedule(0, 600)
    flood = [run for run in runs if run.group == FLOODER]
    assert {run.user for run in flood} == {FLOOD_USER}
    assert min(run.start_s for run in flood) >= 600 * FLOOD_BEGINS
    calls = {load.app: load.calls_per_run for load in LOADS}
    for load in LOADS:
        for user in load.users:
            per_minute = sum(calls[r.app] for r in runs if r.user == user) / 10
            assert per_minute == pytest.approx(mean[load.app], rel=0.25)
    assert len(flood) * calls["documents"] / 9 > 5 * CALLS_PER_MINUTE


def test_no_session_of_a_part_has_the_task_of_another():
    runs = [run for part in range(3) for run in sessions(0, part)]
    tasks = {documents.library().part(run.number, coding_agent.TASK_CHARS) for run in runs}
    assert len(tasks) == len({run.run_id for run in runs}) == len(runs)


def test_profiles_declare_the_calls_of_a_run():
    assert set(APPS) == {load.app for load in (*LOADS, CODING)}
    for load in (*LOADS, CODING):
        assert APPS[load.app].profile["calls_per_interaction"] == load.calls_per_run
    assert len(question_answering.ASPECTS) == question_answering.ANSWERERS
    assert report_team.PROFILE["calls_per_interaction"] == report_team.WORKERS + 2
    nodes = sum(
        min(tree_of_thoughts.KEPT, tree_of_thoughts.BRANCHES**level) * tree_of_thoughts.BRANCHES
        for level in range(tree_of_thoughts.LEVELS)
    )
    assert 2 + 2 * nodes == tree_of_thoughts.PROFILE["calls_per_interaction"]


def test_docstrings_are_in_source_order():
    source = """
'Top.'
class A:
    'Of A.'
    def f(self):
        '''Of f.

        More.
        '''
"""
    assert documents.docstrings(source) == ["module: Top.", "A: Of A.", "f: Of f.\n\nMore."]


@pytest.mark.parametrize(
    "corpus", [pytest.param(documents.library, marks=pytest.mark.deep), documents.package]
)
def test_texts_are_one_byte_per_character_and_long_enough(corpus):
    text = corpus().text
    assert text.isascii()
    assert len(text) > documents.MIN_CHARS
    assert corpus().part(0, 500) != corpus().part(1, 500)
    last = len(text) // 500
    assert len(corpus().part(last, 500)) == 500, "goes on from the beginning"
    assert corpus().part(10**6, 500) == corpus().part(10**6, 500)


@pytest.mark.deep
def test_documents_of_the_flood_differ_from_those_of_users():
    chars = question_answering.DOCUMENT_CHARS
    shared = {
        documents.library().part(n, chars) for n in range(question_answering.SHARED_DOCUMENTS)
    }
    first = question_answering.FIRST_FLOOD_DOCUMENT
    flood = {documents.library().part(first + n, chars) for n in range(150)}
    assert len(flood) == 150
    assert not flood & shared


def test_missing_sources_are_an_error(tmp_path):
    with pytest.raises(documents.NoTextError, match="Nowhere"):
        documents._corpus("Nowhere", tmp_path, ("argparse",))
