"""A worker's main thread has no helpers in torch's pool; run apart: a process keeps its threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairserve.engine.torch.host_threads import apart

SUPPORT = str(Path(__file__).parents[2] / "support")
SCRIPT = """
import os
import sys

from processes import eventually

def threads():
    return len(os.listdir("/proc/self/task"))

import torch
torch.set_num_threads(3)
from fairserve.engine.torch import model_loader
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.engine_thread import EngineThread
from fairserve.engine.torch.host_threads import apart
from fairserve.scheduling.local.fcfs import Fcfs

model_loader._SMALL_MODEL_PARAMETERS = 0
before = threads()
loaded = apart(lambda: model_loader.load_model(sys.argv[1], device="cpu"))
EngineThread(loaded, Fcfs(), EngineOptions(kv_tokens=65536), 10, print)
eventually(lambda: threads() <= before, deadline_s=20)  # a thread ends a little after it is joined
assert threads() == before, threads() - before
torch.zeros(2**22)
assert threads() == before + 2, "the main thread has helpers now"
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_loading_leaves_no_helpers_behind(llama_folder):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(llama_folder)],
        env={**os.environ, "PYTHONPATH": SUPPORT},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_what_goes_wrong_apart_is_raised():
    assert apart(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)
