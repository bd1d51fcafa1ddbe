"""The server's threads share a heap. It runs in processes of its own: the setting cannot be undone."""

import platform
import subprocess
import sys

import pytest

from fairserve.engine.allocator import HEAPS

HEAPS_OF_THREADS = """
import ctypes, sys, threading
if sys.argv[1] == "set":
    from fairserve.engine.allocator import return_freed_memory
    assert return_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
all_have = threading.Barrier(7)
def work():
    libc.malloc(10_000)  # a thread's first block gives it a heap
    all_have.wait(60)
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
all_have.wait(60)
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
for thread in threads:
    thread.join()
print(open(sys.argv[2]).read().count("<heap nr="))
"""


def heaps(setting, path):
    done = subprocess.run(
        [sys.executable, "-c", HEAPS_OF_THREADS, setting, path],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_threads_share_a_heap(tmp_path):
    assert heaps("set", tmp_path / "set") <= HEAPS < heaps("unset", tmp_path / "unset")
