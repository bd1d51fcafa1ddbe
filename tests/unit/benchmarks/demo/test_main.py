"""Test the command line, the ledger comparison, and the progress lines of the demo."""

import io
from collections import Counter

import pytest

from fairserve.benchmarks.commands import demo
from fairserve.benchmarks.demo.ledger_check import compare
from fairserve.benchmarks.demo.progress import DemoProgress
from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.server_process import DemoServer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "fcfs,unfair"], "unfair"),
        (["--systems", ","], "names no system"),
        (["--workers", "0"], "greater than or equal to 1"),
        (["--seconds", "1"], "greater than or equal to 2"),
        (["--second", "5"], "did you mean --seconds?"),
    ],
)
def test_wrong_usage_is_rejected(arguments, message, capsys):
    assert demo(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_ledger_must_agree_with_the_clients():
    outcomes = Counter({("a", "completed"): 5, ("a", "refused"): 2, ("b", "completed"): 9})
    row = {"calls": 7, "uncharged_calls": 0, "completed": 5, "refused": 2}
    assert compare("a", row, outcomes) == []
    assert compare("a", {**row, "calls": 6}, outcomes) == [
        "the ledger has 6 calls of a, the clients saw 7"
    ]
    assert len(compare("a", {**row, "completed": 6}, outcomes)) == 1
    assert len(compare("a", {}, outcomes)) == 3


def test_an_interrupted_call_may_be_missing_in_the_ledger():
    outcomes = Counter({("a", "completed"): 5, ("a", "cancelled"): 2})
    for calls, completed in [(5, 5), (6, 5), (7, 7)]:
        assert compare("a", {"calls": calls, "completed": completed}, outcomes) == []
    assert compare("a", {"calls": 8, "completed": 5}, outcomes) == [
        "the ledger has 8 calls of a, the clients saw 5 and cut 2 off"
    ]


async def test_progress_is_plain_lines_without_a_terminal():
    stream = io.StringIO()
    progress = DemoProgress(stream)
    async with progress.watching("fcfs", Recorder(), 1.0):
        pass
    assert stream.getvalue().count("\n") == 1
    assert "\r" not in stream.getvalue()
    assert "0 runs started" in stream.getvalue()


def test_a_server_that_was_never_started_leaves_no_folder():
    server = DemoServer("fcfs", [], keep_logs=False)
    assert server.folder.is_dir()
    server.kill()
    assert not server.folder.exists()
