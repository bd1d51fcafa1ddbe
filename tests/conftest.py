"""For all tests: Hypothesis judges what code does, never how long a busy machine takes for it.

CI tries the same examples every time, so that it judges a change and not its luck; everywhere else they
are new ones at each run.
"""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

if not Path("/dev/nvidiactl").exists():
    # Read when triton is first imported, which torch may do: kernels are run by its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("fairserve", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("fairserve")


@pytest.fixture(autouse=True, scope="module")
def collected():
    """What a module leaves open is told there, not in whatever test finds it as garbage."""
    yield
    gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What was logged goes from the processes of pytest-xdist as UTF-8, and tests log what is none."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
