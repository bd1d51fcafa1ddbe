import pytest

from fairserve.engine.worker import main, parse_options


def test_options_have_defaults():
    options = parse_options([], {})
    assert (options.model, options.host, options.port) == ("fairserve-tiny-random", "127.0.0.1", 0)
    assert (options.local_scheduler, options.exit_with_parent) == ("dlpm", False)
    assert (options.kv_tokens, options.scheduler_options) == (None, {})


def test_flags_override_the_environment():
    environment = {
        "FAIRSERVE_WORKER_MAX_BATCH": "7",
        "FAIRSERVE_WORKER_PORT": "5",
        "FAIRSERVE_WORKER_EXIT_WITH_PARENT": "true",
        "FAIRSERVE_WORKER_SCHEDULER_OPTION": "quantum=5,max_bypass=2",
    }
    options = parse_options(["--port", "6", "--scheduler-option", "we=0.5"], environment)
    assert (options.max_batch, options.port, options.exit_with_parent) == (7, 6, True)
    assert options.scheduler_options == {"quantum": 5, "max_bypass": 2, "we": 0.5}
    assert not parse_options(["--no-exit-with-parent"], environment).exit_with_parent


def test_scheduler_options_are_parsed():
    argv = ["--scheduler-option", "refill-when-stuck=false", "--scheduler-option", "name=x=y"]
    assert parse_options(argv, {}).scheduler_options == {"refill_when_stuck": False, "name": "x=y"}


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
def test_invalid_flags_exit_with_2(argv, environment, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_options(argv, environment)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


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
    assert main([*argv, "--device", "cpu"]) == 1
    assert message in capsys.readouterr().err
