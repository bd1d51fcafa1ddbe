import os

import pytest
from typer.main import get_command

from fairserve.engine.worker import WorkerOptions
from fairserve.platform.server.cli import main
from fairserve.platform.server.commands.worker import app


def parse(*argv):
    """Return the options of a command line, with the environment for those not given."""
    return WorkerOptions(**get_command(app).make_context("fairserve worker", list(argv)).params)


def test_options_have_defaults():
    options = parse()
    assert (options.model, options.host, options.port) == ("fairserve-tiny-random", "127.0.0.1", 0)
    assert (options.local_scheduler, options.parent) == ("dlpm", 0)
    assert (options.kv_tokens, options.scheduler_options()) == (None, {})


def test_flags_override_the_environment(monkeypatch):
    monkeypatch.setenv("FAIRSERVE_WORKER_MAX_BATCH", "7")
    monkeypatch.setenv("FAIRSERVE_WORKER_PORT", "5")
    monkeypatch.setenv("FAIRSERVE_WORKER_EXIT_WITH_PARENT", "true")
    monkeypatch.setenv("FAIRSERVE_WORKER_SCHEDULER_OPTION", "quantum=5,max_bypass=2")
    options = parse("--port", "6", "--scheduler-option", "we=0.5")
    assert (options.max_batch, options.port, options.parent) == (7, 6, os.getppid())
    assert options.scheduler_options() == {"quantum": 5, "max_bypass": 2, "we": 0.5}
    assert parse("--no-exit-with-parent").parent == 0
    assert parse("--no-exit-with-parent", "--parent-pid", "7").parent == 7


def test_scheduler_options_are_parsed():
    options = parse(
        "--scheduler-option", "refill-when-stuck=false", "--scheduler-option", "name=x=y"
    )
    assert options.scheduler_options() == {"refill_when_stuck": False, "name": "x=y"}


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        (["--scheduler-option", "quantum"], {}),
        (["--port", "x"], {}),
        (["--preemption", "oldest"], {}),
        ([], {"FAIRSERVE_WORKER_PREEMPTION": "oldest"}),
        ([], {"FAIRSERVE_WORKER_PORT": "x"}),
        ([], {"FAIRSERVE_WORKER_EXIT_WITH_PARENT": "maybe"}),
    ],
)
def test_invalid_flags_exit_with_2(argv, environment, capsys, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["worker", *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("fairserve worker: Invalid value")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--local-scheduler", "magic"], "known: fcfs"),
        (["--scheduler-option", "nonsense=1"], "nonsense"),
        (["--scheduler-option", "quantum=-1"], "quantum"),
        (["--dtype", "int3"], "allowed: auto"),
        (["--model", "/nowhere/at/all"], "nowhere"),
        (["--kv-events-endpoint", "tcp://nowhere"], "'tcp://nowhere' cannot be bound"),
        (["--kv-events-replay-endpoint", "tcp://127.0.0.1:0"], "needs --kv-events-endpoint"),
        (["--kv-events-endpoint", "x", "--kv-events-buffer-steps", "0"], "buffer_steps is 0"),
    ],
)
def test_startup_errors_are_explained(argv, message, capsys):
    assert main(["worker", *argv, "--device", "cpu"]) == 1
    assert message in capsys.readouterr().err
