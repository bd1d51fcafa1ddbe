"""A worker process has no helper threads of its main thread, and keeps its memory.

Measured once in a separate process: a process keeps its threads and the options of its allocator.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fairserve.engine.torch.host_threads import apart

SUPPORT = str(Path(__file__).parents[2] / "support")
SCRIPT = """
import json
import os
import resource
import sys

from processes import eventually

def threads():
    return len(os.listdir("/proc/self/task"))

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [torch.ones(2**20) for _ in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

import torch
torch.set_num_threads(3)
from fairserve.engine.torch import model_loader
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.engine_thread import EngineThread
from fairserve.engine.allocator import keep_freed_memory
from fairserve.engine.torch.host_threads import apart
from fairserve.scheduling.local.fcfs import Fcfs

model_loader._SMALL_MODEL_PARAMETERS = 0
before = threads()
loaded = apart(lambda: model_loader.load_model(sys.argv[1], device="cpu"))
EngineThread(loaded, Fcfs(), EngineOptions(kv_tokens=65536), 10, print)
eventually(lambda: threads() <= before, deadline_s=20)  # a thread ends a little after it is joined
after_loading = threads() - before
torch.zeros(2**22)
after_computing = threads() - before
keeps = keep_freed_memory()
faults()
print(json.dumps([after_loading, after_computing, keeps, faults()]))
"""


@pytest.fixture(scope="module")
def measured(llama_folder):
    """Return helpers after loading and after computing, whether memory is kept, and page faults."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(llama_folder)],
        env={**os.environ, "PYTHONPATH": SUPPORT},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_loading_leaves_no_helper_threads(measured):
    after_loading, after_computing, *_ = measured
    assert after_loading == 0
    assert after_computing == 2, "the main thread has helpers now"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_second_pass_allocates_no_new_memory(measured):
    *_, keeps, faults = measured
    assert keeps
    # Without it each of the 200 tensors needs some thousand new pages.
    assert faults < 2000


def test_errors_of_the_separate_process_are_raised():
    assert apart(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)
