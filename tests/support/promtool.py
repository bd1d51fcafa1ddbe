"""Prometheus' own checks of metrics and rules: ``promtool``, where it is installed."""

import os
import shutil
import subprocess

import pytest


def promtool(*arguments, text=""):
    """Run a check; fail the test with what it finds. Skips without promtool, and fails under CI=true."""
    binary = shutil.which("promtool")
    if binary is None:
        reason = "promtool is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    run = subprocess.run([binary, *arguments], input=text, text=True, capture_output=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
