"""The benchmark's worker as a child process, which takes some milliseconds for a token of each call."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import sys, uvloop
from fairserve.benchmarks.bench.gateway import stub_worker
stub_worker.KV_BLOCKS = int(sys.argv[1])
uvloop.run(stub_worker.serve(float(sys.argv[2])))
"""


class PacedWorker:
    """A worker process that may be killed. Its model is ``stub``."""

    def __init__(self, *, step_s=0.01, kv_blocks=1 << 18):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(kv_blocks), str(step_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{port}"

    def close(self):
        """End the process, if it runs."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
