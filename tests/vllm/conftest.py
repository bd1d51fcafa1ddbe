"""The plug-in beside vLLM: `make test-vllm` runs these in environments of their own.

Where vLLM is missing they skip. What vLLM and what it imports warn of is not ours to fix.
"""

import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm_world  # noqa: F401
except pytest.skip.Exception:
    sys.modules.pop("vllm_world", None)  # each file says so itself


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
