"""Options and hooks of the whole suite: deep tests, seeds, and a check for leaked resources.

`make test` runs every test that is not marked ``deep``, and tries few examples of each property.
`make test-deep` (``--deep``) runs the tests marked ``deep`` and the randomised ones: every property
with many examples, and every test that takes the fixture ``seed``. All randomness derives from one
seed, printed at the start. `make test` repeats itself: its seed is fixed, and under CI the hash of the
tree, so that a run changes with the code and not by chance. Deep runs draw a new one.
"""

import gc
import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, is_hypothesis_test, settings, strategies

if not Path("/dev/nvidiactl").exists():
    # Read when triton is first imported, possibly by torch: kernels are run by its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Deadlines are off: Hypothesis checks results, never how long a busy machine takes for them.
# Hypothesis ignores the seed when it derandomises, which is its default under CI.
settings.register_profile("quick", deadline=None, derandomize=False, max_examples=25)
settings.register_profile("deep", settings.get_profile("quick"), max_examples=500)

ROOT = Path(__file__).resolve().parents[1]
SEED_OPTION = "hypothesis_seed"
LOG_LINES = 60
"""Last lines of a server's log that a failure shows."""


def pytest_addoption(parser):
    parser.addoption(
        "--deep",
        action="store_true",
        help="run the tests marked deep and the randomised ones, with many examples",
    )


def _new_seed(*, deep):
    """Return the hash of the committed tree under CI; else a fixed number, or a random one if deep."""
    if os.environ.get("CI") == "true":
        command = ["git", "rev-parse", "HEAD^{tree}"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return int(run.stdout, 16) % 2**64
    return random.SystemRandom().randrange(2**32) if deep else 0


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    deep = config.getoption("--deep")
    settings.load_profile("deep" if deep else "quick")
    # The processes of pytest-xdist use the seed of the process that started them.
    seed = getattr(config, "workerinput", {}).get("seed") or config.getoption(SEED_OPTION)
    config.option.hypothesis_seed = str(_new_seed(deep=deep) if seed is None else seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["seed"] = node.config.getoption(SEED_OPTION)


def pytest_report_header(config):
    return f"seed: {config.getoption(SEED_OPTION)} (repeat with --hypothesis-seed)"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect tests without collections of garbage: a fifth of the time is spent in them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _is_random(item):
    return is_hypothesis_test(getattr(item, "obj", None)) or "seed" in item.fixturenames


def pytest_collection_modifyitems(config, items):
    deep_run = config.getoption("--deep")
    kept, left_out = [], []
    for item in items:
        deep = item.get_closest_marker("deep") is not None
        wanted = deep or _is_random(item) if deep_run else not deep
        (kept if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture
def seed(request):
    """Return a number for ``random.Random``, derived from the seed of the run and the test's name."""
    text = f"{request.config.getoption(SEED_OPTION)} {request.node.nodeid}"
    return random.Random(text).randrange(2**32)


@pytest.fixture(autouse=True, scope="session")
def _first_property():
    """Try a property before any object is frozen.

    Hypothesis looks for who refers to its random numbers then, and warns if it finds none: it does not
    see frozen objects, and a server that runs in this process freezes some at any time.
    """

    @settings(max_examples=1, database=None)
    @given(strategies.none())
    def holds(_):
        pass

    holds()


@pytest.fixture(autouse=True, scope="module")
def _collect_garbage():
    """Report the open resources of a module in that module, not in a later test that collects them.

    Earlier objects are frozen: a scan of all of torch after every module takes a second each.
    """
    gc.freeze()
    yield
    gc.collect()


def _logs(fixtures):
    """Yield names and last lines of the logs of the servers among a test's fixtures."""
    for name, value in fixtures.items():
        if hasattr(value, "last_log"):
            yield f"log of {name}", value.last_log(LOG_LINES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add logs of its servers and the line that repeats a failure, as UTF-8 for pytest-xdist."""
    report = yield
    if report.failed:
        report.sections += _logs(getattr(item, "funcargs", {}))
        seed = item.config.getoption(SEED_OPTION)
        deep = "--deep " if item.config.getoption("--deep") else ""
        line = f"python -m pytest {deep}--hypothesis-seed={seed} '{item.nodeid}'"
        report.sections.append(("repeat this failure with", line))
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
