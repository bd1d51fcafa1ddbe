"""Fixtures for the tests of the plug-in beside vLLM, which `make test-vllm` runs.

Without vLLM they are skipped. Warnings of vLLM and of its imports are not ours to fix. Tests in the
folder ``engine`` need vLLM's kernels for CPUs, which only the build of the first release has.
"""

import os
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPECTED = os.environ.get("EXPECTED_VLLM", "")
"""Beginning of the expected version: one environment holds two releases."""

RELEASE = None
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm_world  # noqa: F401
        from vllm import __version__ as RELEASE  # noqa: N812
except pytest.skip.Exception:
    sys.modules.pop("vllm_world", None)  # each file skips itself

if RELEASE is not None and not RELEASE.startswith(EXPECTED):
    raise pytest.UsageError(f"vLLM is {RELEASE}; must be {EXPECTED}")


def pytest_report_header():
    return f"vLLM: {RELEASE}"


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
