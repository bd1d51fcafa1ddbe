"""Test the figures of the tracker at a tiny size, and the load that they are measured with."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairserve.benchmarks.bench import interactions, tracker_calls
from fairserve.benchmarks.bench.figures_command import FiguresOptions
from fairserve.benchmarks.bench.tracker_calls import (
    KINDS,
    MOST_CALLS,
    TrackerTime,
    Traffic,
)
from fairserve.benchmarks.commands import bench

TINY = 0.004
WEIGHED = Path(__file__).resolve().parents[3] / "support" / "weighed_trackers.py"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "out.json"
    interactions.command.measure(FiguresOptions(json=path, rounds=5), scale=TINY)
    return json.loads(path.read_text())


def grown(runs, seed=1):
    traffic = Traffic(runs, seed)
    traffic.grow()
    return traffic


# --- the command --------------------------------------------------------------------------------


def test_the_document_contains_every_figure(document):
    assert set(document) == {"machine", "method", "figures", "command"}
    names = [figure["name"] for figure in document["figures"]]
    assert names == ["tracker_us_per_call", "tracker_bytes_per_call"]
    for figure in document["figures"]:
        least, greatest = figure["spread"]
        assert 0 < least <= figure["value"] <= greatest
        assert figure["details"]["runs"] > 0
        assert figure["details"]["live_calls"] > figure["details"]["runs"]
    assert document["method"]["rounds"] == 5


def test_the_details_have_every_kind_of_call_and_both_numbers_of_runs(document):
    details = document["figures"][0]["details"]
    assert all(details[f"{kind}_calls"] > 0 for kind in KINDS)
    assert details["with_a_hundredth_of_the_runs_us"] > 0
    assert details["growth"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "dispatcher_calls_per_s"], "unknown figure 'dispatcher_calls_per_s'"),
        (["--plot", "."], "No such option: --plot"),
    ],
)
def test_wrong_usage_is_rejected(arguments, message, capsys):
    assert bench(["interactions", *arguments]) == 2
    assert message in capsys.readouterr().err


# --- the load -----------------------------------------------------------------------------------


def test_each_round_has_equally_many_calls_of_every_kind():
    time = TrackerTime(runs=100, calls=400)
    for _ in range(2):
        details = time.round().details
        kinds = [details[f"{kind}_calls"] for kind in KINDS]
        assert min(kinds) > 0
        assert sum(kinds) == 400


def test_the_tracker_holds_the_generated_runs():
    traffic = grown(200)
    runs = [traffic.tracker.get(name) for name, calls, _ in traffic._runs if calls]
    assert len(runs) == len(traffic.tracker)
    assert sum(map(len, runs)) == traffic.calls
    assert not any(run.live for run in runs)
    parents = Counter(len(run.parents(number)) for run in runs for number in range(len(run)))
    assert {0, 1, 2, 3} <= set(parents)
    assert max(run.stage_after(range(len(run))) for run in runs) > MOST_CALLS / 4


def test_calls_follow_continued_calls_or_else_ended_ones():
    traffic = grown(50)
    attached = {kind: [] for kind in KINDS}
    for name, calls, _ in traffic._runs:
        before = traffic.kinds.copy()
        call, _ = traffic._call(name, calls)
        (kind,) = traffic.kinds - before
        attached[kind].append(traffic.tracker.attach(call, tracker_calls.PROFILE, 0.0))
    assert all(attached.values())
    assert all(found.stage == 1 and not found.parents for found in attached["first"])
    assert all(len(found.parents) == 1 for found in attached["continued"])
    assert all(len(found.parents) >= 1 for found in attached["timed"])
    assert {0, 1, 2, 3} == {len(found.parents) for found in attached["named"]}


def test_the_age_of_runs_is_stationary_from_the_start():
    traffic = grown(400)
    # A run of n calls lasts n times as long as one of a single call, and has 0 to n - 1 of them.
    steady = (MOST_CALLS - 1) / 3
    assert traffic.calls / 400 == pytest.approx(steady, rel=0.08)
    assert max(len(calls) for _, calls, _ in traffic._runs) < MOST_CALLS
    traffic.measured(16_000)
    assert traffic.calls / 400 == pytest.approx(steady, rel=0.08)
    assert max(len(calls) for _, calls, _ in traffic._runs) < MOST_CALLS
    begun = sum(1 for _, calls, _ in traffic._runs if calls)
    assert len(traffic.tracker) == begun


def test_the_load_follows_from_the_seed():
    def ids(seed):
        return [calls for _, calls, _ in grown(20, seed)._runs]

    assert ids(3) == ids(3)
    assert ids(3) != ids(4)


# --- bytes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weighed():
    """Return the printed figures of ``weighed_trackers``."""
    done = subprocess.run(
        [sys.executable, WEIGHED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.deep
def test_bytes_are_those_retained_by_the_tracker(weighed):
    # The list holds an address of 8 bytes each, with spare capacity; the load itself does not count.
    assert 1008 <= weighed["a thousand bytes a call"] < 1012


@pytest.mark.deep
def test_bytes_equal_the_object_sizes_of_the_tracker(weighed):
    assert weighed["the tracker"] == pytest.approx(weighed["its objects"], rel=0.03)
