"""The recorded traces that lie beside the repository; tests on them skip where they are absent."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"


def shared_trace(name):
    """The path of a recorded trace, from the folder FAIRSERVE_TRACES or the one beside the repository.

    Skips the test if there is no such folder, and fails if a folder that was named lacks the file.
    """
    named = os.environ.get("FAIRSERVE_TRACES")
    folder = Path(named) if named else BESIDE
    if not named and not folder.is_dir():
        pytest.skip("no recorded traces: set FAIRSERVE_TRACES to their folder")
    path = folder / name
    assert path.is_file(), f"{path} is missing"
    return path
