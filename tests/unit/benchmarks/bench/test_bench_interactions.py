"""Test the figures of the tracker at a tiny size, and the load that they are measured with."""

import json

import pytest

from fairserve.benchmarks.bench import interactions
from fairserve.benchmarks.bench.figures_command import FiguresOptions
from fairserve.benchmarks.bench.tracker_calls import (
    KINDS,
    TrackerTime,
)
from fairserve.benchmarks.commands import bench

TINY = 0.004


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "out.json"
    interactions.command.measure(FiguresOptions(json=path, rounds=2), scale=TINY)
    return json.loads(path.read_text())


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
    assert document["method"]["rounds"] == 2


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
