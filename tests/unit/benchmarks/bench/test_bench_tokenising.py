"""Test the figures of prompts at a tiny size."""

import json

import pytest

from fairserve.benchmarks.bench import tokenising
from fairserve.benchmarks.bench.figures_command import FiguresOptions


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        tokenising.command.measure(FiguresOptions(json=path, rounds=2), scale=0.01)
    return json.loads(path.read_text())


def test_the_document_contains_every_figure(document):
    names = [figure.name for part in tokenising.PARTS for figure in part.figures]
    assert [figure["name"] for figure in document["figures"]] == names
    for figure in document["figures"]:
        least, greatest = figure["spread"]
        assert 0 < least <= figure["value"] <= greatest


def test_prompts_are_as_long_as_the_figures_say(document):
    details = {figure["name"]: figure["details"] for figure in document["figures"]}
    assert 1_800 < details["tokenise_tenth_turn_us"]["tenth_turn_tokens"] < 2_600
    assert 7_500 < details["tokenise_known_system_us"]["tokens"] < 8_800


def test_each_turn_has_the_messages_of_the_one_before():
    one, two = tokenising.BenchConversations().turns(2, 5)
    assert [each["role"] for each in two] == ["system", "user", "assistant", "user"]
    assert two[:2] == one
