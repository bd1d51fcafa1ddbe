"""A program between the server and Envoy, so that the end of the server reaches Envoy once.

    python -I -S guard.py PARENT COMMAND...

The kernel signals a child when the thread that started it ends (PR_SET_PDEATHSIG). When a process with
many threads is killed, the child passes from one dying thread to the next, and is signalled each time.
Envoy restores the default handlers as soon as it begins to end, so a second SIGTERM would kill it before
it has written its last log lines. This process has one thread and one child: it passes on the first
SIGTERM only, and Envoy is killed with it. It ends with Envoy's status, as a shell does: 128 and the
number of the signal.

Only the standard library, without site packages: it starts in 20 ms. Elsewhere than on Linux a killed
parent leaves Envoy running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def run(parent: int, command: list[str]) -> int:
    """Run the command until it ends, at the latest with ``parent``; return its status.

    Signals are waited for, not handled: one that arrives just before a wait for the child would be lost.
    """
    waited_for = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    _end_with(parent, signal.SIGTERM)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(guard, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited_for)
        os.execv(command[0], command)  # noqa: S606
    ends = False
    while True:
        if signal.sigwait(waited_for) == signal.SIGTERM and not ends:
            ends = True
            os.kill(child, signal.SIGTERM)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_with(parent: int, number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends; end if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
