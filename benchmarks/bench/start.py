"""``fairserve bench start``: what a server costs from its start until it is ready, and while it is idle.

A round starts ``fairserve serve`` before one stub worker, waits until it is ready, lets it idle, and
stops it; all but the first start on a data folder that exists, as a restart does. Times are the CPU time
of the process, since other programs do not count in it; the elapsed time is in the details. Weakness:
the worker's model has no tokenizer on this host, so that the start reads none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fairserve.benchmarks.bench.figure import BenchWorkload, Figure, FigurePart, Reading
from fairserve.benchmarks.bench.figures_command import FiguresCommand
from fairserve.benchmarks.bench.gateway import stub_worker
from fairserve.benchmarks.bench.gateway.gateways import FairServe, new_admin_key
from fairserve.benchmarks.bench.gateway.processes import BenchProcess

READY = Figure("ready_cpu_s", "s", "a server from its start until it is ready", 3.0)
MEMORY = Figure("ready_mib", "MiB", "the memory of a ready server", None)
IDLE = Figure("idle_cpu_ms", "ms", "a second of a server without calls", None)
IDLE_S = 5.0
_STEP_MS = "10"


class _Restarted(FairServe):
    """A server that makes no calls."""

    def _set_up(self) -> None:
        """Do nothing: a tenant of an earlier start is there."""


class ServerStart:
    """Servers one after another on one data folder, before a worker that stays."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        """Each server idles for ``idle_s``. The worker ends with this process."""
        self._idle_s, self._admin_key = idle_s, new_admin_key()
        self._folder = tempfile.TemporaryDirectory(prefix="fairserve-start-")
        self._worker = BenchProcess(
            [sys.executable, "-m", stub_worker.__name__, _STEP_MS],
            Path(self._folder.name) / "worker.log",
            piped=True,
        )
        self._worker_url = f"http://127.0.0.1:{self._worker.read()}"

    def round(self) -> Reading:
        """Start a server, measure it, and stop it."""
        with ExitStack() as stack:
            began_s = time.monotonic()
            server = _Restarted(
                Path(self._folder.name), self._worker_url, (), admin_key=self._admin_key
            )
            stack.callback(server.stop)
            elapsed_s, ready_s = time.monotonic() - began_s, server.tree.cpu_s()
            mib = server.tree.memory_bytes() / 2**20
            time.sleep(self._idle_s)
            idle_s = (server.tree.cpu_s() - ready_s) / self._idle_s
            figures = {READY.name: ready_s, MEMORY.name: mib, IDLE.name: 1000 * idle_s}
            return Reading(figures, {"elapsed_s": elapsed_s})

    def close(self) -> None:
        """Stop the worker, and remove the data folder."""
        self._worker.stop()
        self._folder.cleanup()


def _start(scale: float) -> BenchWorkload:
    return ServerStart(IDLE_S * scale)


command = FiguresCommand(
    "start",
    "Measure the CPU time of a server from its start until it is ready, its memory then, and its CPU "
    "time while it is idle.",
    (FigurePart((READY, MEMORY, IDLE), _start),),
    clock="CPU time of the server's process, of all its threads",
)
app = command.app
"""The command ``fairserve bench start``."""
