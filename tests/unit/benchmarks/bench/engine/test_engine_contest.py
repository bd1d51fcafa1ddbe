"""Test the contest of engines: the order of rounds, dropped engines, and reported reasons."""

import pytest

from fairserve.benchmarks.bench.engine.contest import Contest, DisagreementError, enter
from fairserve.benchmarks.bench.engine.figures import ratios
from fairserve.benchmarks.bench.engine.workloads import EngineWorkload
from fairserve.engine.torch.bench.runner import RunnerOutcome, RunnerUnavailableError

LOAD = EngineWorkload("b8", 2, (4, 4), (3, 3))


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """Disable garbage collection before rounds: it takes long where torch is loaded."""
    monkeypatch.setattr("gc.collect", lambda: 0)


class Fake:
    """Takes ``wall_s`` seconds, and returns tokens that depend on the prompt."""

    def __init__(self, name, wall_s=1.0, log=None, fails_at=99, add=0, tokens=None):
        self.name, self.wall_s, self.add, self.tokens = name, wall_s, add, tokens
        self.log = [] if log is None else log
        self.left = fails_at
        self.closed = False

    def run(self, requests):
        self.log.append(self.name)
        self.left -= 1
        if self.left < 0:
            raise RunnerUnavailableError("its interface has changed")
        outputs = tuple(
            tuple(request.prompt[0] + self.add for _ in range(self.tokens or request.output_tokens))
            for request in requests
        )
        return RunnerOutcome(self.wall_s, (0.25,) * len(requests), outputs)

    def close(self):
        self.closed = True


def contest(*runners):
    return Contest({runner.name: runner for runner in runners}, vocabulary=50)


def test_rounds_rotate_the_order_and_keep_all_results():
    log = []
    made = contest(*(Fake(name, wall_s, log) for name, wall_s in (("a", 1), ("b", 2), ("c", 3))))
    for number in range(3):
        made.round(number, LOAD)
    assert "".join(log) == "abc" + "bca" + "cab"
    assert [run.tokens_per_s for run in made.runs["b8"]["b"]] == [3.0] * 3
    assert made.runs["b8"]["c"][0].first_token_s == (0.25, 0.25)
    assert {run.alike for of_one in made.runs["b8"].values() for run in of_one} == {1.0}


def test_disagreeing_engines_stop_the_contest():
    contest(Fake("ours"), Fake("other")).check(LOAD)
    with pytest.raises(DisagreementError, match="other gives other tokens than ours in 2 of 2"):
        contest(Fake("ours"), Fake("same"), Fake("other", add=1)).check(LOAD)


def test_a_failing_engine_is_dropped_and_the_others_continue():
    messages = []
    broken = Fake("broken", fails_at=1)
    made = contest(Fake("ours"), broken, Fake("other"))
    made.say = messages.append
    for number in range(3):
        made.round(number, LOAD)
    assert made.unavailable == {"broken": "its interface has changed"}
    assert messages == ["broken takes no part: its interface has changed"]
    assert broken.closed
    assert {name: len(runs) for name, runs in made.runs["b8"].items()} == {"ours": 3, "other": 3}


def test_too_few_tokens_do_not_count_as_fast():
    made = contest(Fake("ours"), Fake("short", tokens=1))
    made.warm_up(LOAD)
    assert made.unavailable == {"short": "gave 2 tokens, not those that were asked for"}


def test_an_engine_that_cannot_be_built_is_reported():
    def broken():
        raise RunnerUnavailableError("no memory")

    made = enter({"ours": lambda: Fake("ours"), "broken": broken}, 50)
    assert list(made.runners) == ["ours"]
    assert made.unavailable == {"broken": "no memory"}
    runner = made.runners["ours"]
    made.close()
    assert runner.closed
    assert not made.runners


def test_ratios_are_computed_within_a_round_and_name_their_peers():
    ours, theirs = Fake("fairserve", 1.0), Fake("transformers cb", 4.0)
    made = contest(ours, theirs)
    made.round(0, LOAD)
    ours.wall_s, theirs.wall_s = 2.0, 2.0
    made.round(1, LOAD)
    ours.wall_s, theirs.wall_s = 1.0, 3.0
    made.round(2, LOAD)
    [result] = ratios(made.runs)
    assert result.figure.name == "engine_vs_transformers_cb_b8"
    assert result.values == (4.0, 1.0, 3.0)
    assert result.value == 3.0
    assert result.figure.peers == {"fairserve tok/s": 6.0, "transformers cb tok/s": 2.0}
    assert result.figure.reached(1.3, result.figure.target)
    assert not result.figure.reached(1.29, result.figure.target)


def test_a_figure_without_its_peer_is_omitted():
    made = contest(Fake("fairserve"), Fake("generate"))
    made.round(0, LOAD)
    assert ratios(made.runs) == []
