"""The allocator keeps what a pass frees; run apart, since it holds for a whole process."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import torch
from fairserve.engine.torch.host_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [torch.ones(2**20) for _ in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_second_pass_touches_no_new_memory():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    # Without it each of the 200 tensors is some thousand new pages.
    assert int(done.stdout) < 2000
